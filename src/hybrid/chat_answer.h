/* What a whole answer to a chat request says (OpenAI's form), whoever made it. */
#ifndef CALLA_HYBRID_CHAT_ANSWER_H
#define CALLA_HYBRID_CHAT_ANSWER_H

#include "base/json.h"

/* Of the first choice. Views into the answer, which may be any JSON value. */
typedef struct chat_answer {
    const json_t *message;
    const json_t *content; /* NULL: not there, or no text */
    bool cut;              /* it ended for its length */
} chat_answer;

chat_answer chat_answer_read(const json_t *answer);

#endif
