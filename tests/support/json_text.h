#ifndef CALLA_TESTS_JSON_TEXT_H
#define CALLA_TESTS_JSON_TEXT_H

#include <jansson.h>

/* To be freed; it fails the test, naming the text, if there is no JSON in it. */
json_t *json_of(const char *text);

#endif
