#include "server/api_error.h"

#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of(int status)
{
    switch (status) {
    case 429:
        return "rate_limit_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

bool api_fail(api_error *e, int status, const char *param, const char *code, const char *format,
              ...)
{
    calla_error text; /* for its tidying of what comes from outside */
    char message[sizeof e->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_set(&text, CALLA_ERR_INPUT, "%s", message);
    *e = (api_error){.status = status, .type = type_of(status), .code = code};
    snprintf(e->message, sizeof e->message, "%.*s", (int)sizeof e->message - 1, text.message);
    error_set(&text, CALLA_ERR_INPUT, "%.*s", (int)sizeof e->param - 1, param ? param : "");
    snprintf(e->param, sizeof e->param, "%.*s", (int)sizeof e->param - 1, text.message);
    return false;
}

static int http_status(calla_status status)
{
    switch (status) {
    case CALLA_ERR_INPUT:
    case CALLA_ERR_CONTEXT:
    case CALLA_ERR_UNSUPPORTED:
        return 400;
    default:
        return 500;
    }
}

bool api_fail_status(api_error *e, const calla_error *err)
{
    static const char *const places[] = {"messages", "input", "tools", "response_format",
                                         "text.format"};
    char param[sizeof e->param] = "";
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t n = strcspn(err->message, ":");
        if (strncmp(err->message, places[i], strlen(places[i])) == 0 && n < sizeof param)
            snprintf(param, sizeof param, "%.*s", (int)n, err->message);
    }
    int status = http_status(err->code);
    const char *code = status == 400 ? "invalid_value" : "engine_error";
    return api_fail(e, status, param, code, "%s", err->message);
}

static void put_text_or_null(strbuf *out, const char *name, const char *text)
{
    strbuf_printf(out, ", \"%s\": ", name);
    if (text && *text)
        json_write_string(out, text, strlen(text));
    else
        strbuf_puts(out, "null");
}

void api_error_write(strbuf *out, const api_error *e)
{
    strbuf_puts(out, "{\"error\": {\"message\": ");
    json_write_string(out, e->message, strlen(e->message));
    put_text_or_null(out, "type", e->type);
    put_text_or_null(out, "param", e->param);
    put_text_or_null(out, "code", e->code);
    strbuf_puts(out, "}}");
}
