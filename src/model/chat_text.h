/* Text that knows which of its parts came from outside (calla_prompt.literal) and which the
 * template wrote. Appends never fail one by one, as in strbuf. */
#ifndef CALLA_MODEL_CHAT_TEXT_H
#define CALLA_MODEL_CHAT_TEXT_H

#include "base/json.h"

#include <calla/model.h>

typedef struct chat_text {
    strbuf text;
    calla_range *literal; /* [n_literal] ascending, disjoint, not adjacent, not empty */
    size_t n_literal, capacity;
    bool failed;
} chat_text;

void chat_text_free(chat_text *t);
void chat_text_clear(chat_text *t);

/* Text of the template. */
void chat_text_put(chat_text *t, const char *text);
/* Text from outside: bytes, a JSON string's, a JSON value in Python's form. */
void chat_text_put_literal(chat_text *t, const char *bytes, size_t n_bytes);
void chat_text_put_string(chat_text *t, const json_t *string);
void chat_text_put_json(chat_text *t, const json_t *value);
/* The part `range` of another text, with its literal parts. */
void chat_text_put_part(chat_text *t, const chat_text *from, calla_range range);

/* What Python's str.strip() leaves of the part `range` of text. */
calla_range text_strip(const char *text, calla_range range);
/* lstrip("\n") and rstrip("\n"). */
calla_range text_strip_newlines_left(const char *text, calla_range range);
calla_range text_strip_newlines_right(const char *text, calla_range range);
/* The first or last place of `part` in the range, or SIZE_MAX. */
size_t text_find_first(const char *text, calla_range range, const char *part);
size_t text_find_last(const char *text, calla_range range, const char *part);

#endif
