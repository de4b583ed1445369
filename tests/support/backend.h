/* Which backend the model tests run: the one CALLA_TEST_BACKEND names, "cpu" if it is not set. */
#ifndef CALLA_TESTS_BACKEND_H
#define CALLA_TESTS_BACKEND_H

#include "engine/backend.h"

/* Its name, for calla_engine_options. Where it has no device here, the program prints SKIP and
 * exits with 77. */
const char *test_backend(void);
const backend_ops *test_ops(void);
/* Its kernel sets but "auto", NULL-terminated; those of cuda are "auto" and what can be forced. */
const char *const *test_isas(void);
/* One that every machine with the backend has, and that is fast: "c" on the CPU. */
const char *test_plain_isa(void);
/* Whether it has the reference profile "f32", the layout bf16 and a KV cache of f32. */
bool test_has_reference(void);

#endif
