/* Checking a tokenizer against goldens of tools/make_tokenizer_goldens.py. */
#ifndef CALLA_TESTS_TOKENIZER_H
#define CALLA_TESTS_TOKENIZER_H

#include <calla/model.h>

/* Opens the tokenizer of a directory; the test fails if that fails. */
calla_tokenizer *open_tokenizer(const char *dir);

/* A copy of dir's tokenizer.json with the older pattern, in a new temporary directory. */
const char *tokenizer_with_old_pattern(const char *dir);

/* Encodes and decodes everything in the file. Returns the number of texts; the test fails where one
 * differs. old_pattern: the ids of the older pattern. */
int check_tokenizer_goldens(const calla_tokenizer *tokenizer, const char *path, bool old_pattern);

#endif
