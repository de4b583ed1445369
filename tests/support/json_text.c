#include "support/json_text.h"

#include "support/support.h"

json_t *json_of(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!value) fail_msg("%s: %s", why.text, text);
    return value;
}
