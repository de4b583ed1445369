/* Filling calla_error and passing failures on. */
#ifndef CALLA_BASE_ERROR_H
#define CALLA_BASE_ERROR_H

#include <calla/calla.h>

/* Sets *err (if not NULL) to `code` and the formatted one-line message; returns `code`, so that
 * `return error_set(err, ...)` reports and leaves. Control characters in the message become "?",
 * and bytes that are not UTF-8 too: file and tensor names come from outside. */
calla_status error_set(calla_error *err, calla_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Like error_set, with ": <strerror(errno_value)>" appended. */
calla_status error_set_errno(calla_error *err, calla_status code, int errno_value,
                             const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Puts a formatted prefix (and ": ") before the message of an error already set. */
calla_status error_prefix(calla_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Forward a failure. CALLA_TRY returns it; CALLA_TRY_GOTO stores it in a local `status` and jumps
 * to the single cleanup label. */
#define CALLA_TRY(call)                                                                            \
    do {                                                                                           \
        calla_status try_status_ = (call);                                                         \
        if (try_status_ != CALLA_OK) return try_status_;                                           \
    } while (0)
#define CALLA_TRY_GOTO(call, label)                                                                \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != CALLA_OK) goto label;                                                        \
    } while (0)

#endif
