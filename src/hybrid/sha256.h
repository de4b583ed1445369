/* SHA-256 (FIPS 180-4), and texts of its values. What a consent is bound to, what the audit says of
 * contents and how its rows hang together are such values. */
#ifndef CALLA_HYBRID_SHA256_H
#define CALLA_HYBRID_SHA256_H

#include <nettle/sha2.h>
#include <stdbool.h>
#include <stddef.h>

enum { SHA256_BYTES = SHA256_DIGEST_SIZE, SHA256_HEX = 65 /* with its NUL */ };

typedef struct sha256_ctx sha256; // nettle's sha256_init, sha256_update and sha256_digest

/* The number's eight bytes and the text, so that texts that follow each other cannot be divided
 * otherwise and give the same value. */
void sha256_add_text(sha256 *s, const char *text, size_t n_bytes);
void sha256_of(const void *data, size_t n_bytes, unsigned char digest[SHA256_BYTES]);
/* Lower-case hexadecimal; n_bytes of data give 2 * n_bytes + 1. */
void hex_write(const unsigned char *data, size_t n_bytes, char *text);
/* Of exactly n_bytes; false if the text is anything else. */
bool hex_read(const char *text, unsigned char *data, size_t n_bytes);
/* Takes as long wherever they differ. */
bool digest_equal(const unsigned char *a, const unsigned char *b, size_t n_bytes);

#endif
