/* Base64 (RFC 4648), both alphabets. */
#ifndef CALLA_HYBRID_BASE64_H
#define CALLA_HYBRID_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* Six bits of a character; -1 if it is none of either alphabet. */
int base64_value(char c);
/* Decodes text [n], whole groups of four and the rest of one, to out [3 * n / 4 + 3]; stops at the
 * first character that is none. Returns the bytes. */
size_t base64_decode(const char *text, size_t n, char *out);

#endif
