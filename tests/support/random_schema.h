/* Schemas for tests of grammars, drawn from a seed. */
#ifndef CALLA_TESTS_RANDOM_SCHEMA_H
#define CALLA_TESTS_RANDOM_SCHEMA_H

#include <jansson.h>
#include <stdint.h>

typedef struct random_source {
    uint64_t seed, at;
} random_source;
/* 0 ... n - 1 */
uint32_t draw_below(random_source *r, uint32_t n);
json_t *random_schema(random_source *r);

#endif
