/* The chat template and its inverse on JSON that is parsed already; see calla/model.h for the
 * contract, docs in chat_render.c and chat_parse.c for the rules. */
#ifndef CALLA_MODEL_CHAT_H
#define CALLA_MODEL_CHAT_H

#include "base/json.h"

#include <calla/model.h>

/* calla_chat_render. `tools` NULL or JSON null means none, `options` NULL the defaults. Borrows its
 * arguments during the call. */
calla_status chat_render(const json_t *messages, const json_t *tools,
                         const calla_chat_options *options, calla_prompt *prompt, calla_error *err);

/* calla_chat_parser_create. The parser keeps a reference to `tools` (NULL or JSON null: none are
 * known). With no_calls nothing is parsed as a tool call, whatever is generated stays text: what
 * tool_choice "none" asks for. */
calla_status chat_parser_create(const char *prompt, size_t n_prompt_bytes, const json_t *tools,
                                bool no_calls, calla_chat_event_fn event, void *user,
                                calla_chat_parser **parser, calla_error *err);

/* Changes no_calls for what is pushed from now on. */
void chat_parser_allow_calls(calla_chat_parser *parser, bool allowed);

/* The beginning of a call that broke off before its name was whole is dropped instead of being
 * text: for who knows that it was going to be a call. Before calla_chat_parser_finish. */
void chat_parser_drop_opening(calla_chat_parser *parser);

/* What the text pushed so far ends in: the reasoning, the newlines between it and the content, the
 * content, or what is or may yet become a tool call. An incomplete tag of another kind belongs to
 * what it stands in. */
typedef enum chat_place { PLACE_REASONING, PLACE_GAP, PLACE_CONTENT, PLACE_CALL } chat_place;
chat_place chat_parser_place(const calla_chat_parser *parser);

#endif
