#include "hybrid/chat_answer.h"

chat_answer chat_answer_read(const json_t *answer)
{
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *content = json_object_get(message, "content");
    return (chat_answer){
        .message = message,
        .content = json_is_string(content) ? content : NULL,
        .cut = json_is_text(json_object_get(choice, "finish_reason"), "length"),
    };
}
