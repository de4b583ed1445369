#include "hybrid/sha256.h"

#include <nettle/memops.h>
#include <string.h>

void sha256_add_text(sha256 *s, const char *text, size_t n_bytes)
{
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)n_bytes >> (56 - 8 * i));
    sha256_update(s, sizeof length, length);
    sha256_update(s, n_bytes, (const unsigned char *)text);
}

void sha256_of(const void *data, size_t n_bytes, unsigned char digest[SHA256_BYTES])
{
    sha256 s;
    sha256_init(&s);
    sha256_update(&s, n_bytes, data);
    sha256_digest(&s, SHA256_BYTES, digest);
}

void hex_write(const unsigned char *data, size_t n_bytes, char *text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n_bytes; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * n_bytes] = '\0';
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool hex_read(const char *text, unsigned char *data, size_t n_bytes)
{
    if (strlen(text) != 2 * n_bytes) return false;
    for (size_t i = 0; i < n_bytes; i++) {
        int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        data[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

bool digest_equal(const unsigned char *a, const unsigned char *b, size_t n_bytes)
{
    return memeql_sec(a, b, n_bytes) != 0;
}
