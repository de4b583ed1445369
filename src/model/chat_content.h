/* The template's macro render_content. */
#ifndef CALLA_MODEL_CHAT_CONTENT_H
#define CALLA_MODEL_CHAT_CONTENT_H

#include "model/chat_text.h"

/* Puts the text of a message's `content` (NULL = the message has none) into `out`, which is emptied
 * before. In strict mode images and videos become the template's placeholders, except in system
 * messages; otherwise anything but text is an error that names the kind. `index` is the message's,
 * for errors. */
calla_status chat_content_render(const json_t *content, size_t index, bool is_system, bool strict,
                                 chat_text *out, calla_error *err);

#endif
