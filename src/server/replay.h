/* What was generated, kept so that a client that sends it back gets the same tokens again.
 *
 * - The tokens of an answer. The text of an answer can be tokens in more than one way, and the
 * model does not always choose the tokenizer's; encoding the history afresh would then part from
 * what the cache holds. A prompt that begins with an earlier prompt and its answer gets that
 * answer's own tokens.
 * - The reasoning before an answer. Clients send back content and tool calls only, but the template
 *   keeps the reasoning of turns after the last user message: it is put back where the message, and
 *   the one before it, are the same.
 *
 * Bounded in bytes; the least recently used goes first. All threads may use it. */
#ifndef CALLA_SERVER_REPLAY_H
#define CALLA_SERVER_REPLAY_H

#include "base/json.h"

#include <calla/model.h>

typedef struct replay replay;

calla_status replay_create(int64_t n_bytes, replay **r, calla_error *err);
void replay_free(replay *r);

/* The prompt and the text `raw` generated after it are tokens[n_tokens]. Keeps a copy; when memory
 * is short, nothing happens. */
void replay_note_tokens(replay *r, const calla_prompt *prompt, const strbuf *raw,
                        const int32_t *tokens, int64_t n_tokens);
/* calla_tokenizer_encode of the prompt, with the tokens of the longest answer it begins with. */
calla_status replay_encode(replay *r, const calla_tokenizer *tokenizer, const calla_prompt *prompt,
                           calla_tokens *tokens, calla_error *err);

/* The key of what comes before message number `n` (malloc'ed; NULL: no memory). */
char *replay_context(const json_t *messages, size_t n);
/* After `context`, the answer `content` with `calls` (array, as in a message) had this reasoning.
 */
void replay_note_reasoning(replay *r, const char *context, const strbuf *content,
                           const json_t *calls, const strbuf *reasoning);
/* Adds reasoning_content to the assistant messages that have no reasoning and are known. */
void replay_restore_reasoning(replay *r, json_t *messages);

#endif
