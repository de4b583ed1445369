#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at `p`, which a NUL ends; 0 if there is none, or one that
 * rules terminals. */
static size_t sequence_bytes(const unsigned char *p)
{
    if (p[0] < 0x80) return 1;
    size_t n = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (p[0] == 0xc2 && p[1] < 0xa0) return 0; /* the control characters of Latin-1 */
    /* Longer than need be, a surrogate, or beyond U+10FFFF. */
    bool bad = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) ||
               (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90);
    return bad ? 0 : n;
}

/* One line of UTF-8: control characters and what is not UTF-8 become '?', a sequence that
 * truncation broke goes. */
static void tidy(char *text, bool truncated)
{
    unsigned char *p = (unsigned char *)text;
    for (size_t n; *p; p += n ? n : 1) {
        n = sequence_bytes(p);
        if (n > 0 && *p >= 0x20 && *p != 0x7f) continue;
        bool cut = truncated && n == 0 && *p >= 0xc0 && strlen((const char *)p) < 4;
        *p = cut ? '\0' : '?';
        if (cut) return;
    }
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
    tidy(err->message, strlen(err->message) + 1 == sizeof err->message);
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
