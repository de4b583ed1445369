/* What several test programs need. */
#ifndef CALLA_TESTS_SUPPORT_H
#define CALLA_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <calla/model.h>

/* Seconds after which a test gives up waiting for what has to come: more than the slowest machine
 * needs with a sanitizer, and less than CTest waits for the test. */
enum { PATIENCE_S = 300 };

/* Whether this is built with a sanitizer, which makes what computes ten times as slow: it looks for
 * faults that show in a part of what other builds compute. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CALLA_SANITIZED 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CALLA_SANITIZED 1
#endif
#ifndef CALLA_SANITIZED
#define CALLA_SANITIZED 0
#endif

/* Fails the test with the error's message unless status is CALLA_OK. */
void assert_ok(calla_status status, const calla_error *err);
/* Fails unless status is `expected` and the message contains `part`. */
void assert_error(calla_status status, calla_status expected, const calla_error *err,
                  const char *part);

/* CALLA_SOURCE_DIR "/" name; static storage, overwritten by the fourth next call. */
const char *source_path(const char *name);

/* A fresh temporary directory (removed at exit, with all below it); static storage. */
const char *temporary_dir(void);

#endif
