#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Replaces control characters by '?', and cuts a UTF-8 sequence that truncation broke. */
static void tidy(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) text[i] = '?';
    }
    size_t i = n;
    while (i > 0 && n - i < 3 && ((unsigned char)text[i - 1] & 0xc0) == 0x80) i--;
    if (i == 0 || n - i > 3) return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t need = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (need > n - i) text[i - 1] = '\0';
}

static calla_status set_v(calla_error *err, calla_status code, const char *suffix,
                          const char *format, va_list args)
{
    if (!err) return code;
    err->code = code;
    vsnprintf(err->message, sizeof err->message, format, args);
    if (suffix) {
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", suffix);
    }
    tidy(err->message);
    return code;
}

calla_status error_set(calla_error *err, calla_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_v(err, code, NULL, format, args);
    va_end(args);
    return code;
}

calla_status error_set_errno(calla_error *err, calla_status code, int errno_value,
                             const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_v(err, code, strerror(errno_value), format, args);
    va_end(args);
    return code;
}

calla_status error_prefix(calla_error *err, const char *format, ...)
{
    if (!err) return CALLA_ERR_INPUT;
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    va_list args;
    va_start(args, format);
    set_v(err, err->code, old, format, args);
    va_end(args);
    return err->code;
}
