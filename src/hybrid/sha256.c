#include "hybrid/sha256.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void add_block(uint32_t h[8], const unsigned char *p)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                     ((e & v[5]) ^ (~e & v[6])) + constants[i] + w[i];
        uint32_t u = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                     ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void sha256_init(sha256 *s)
{
    *s = (sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                        0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(sha256 *s, const void *data, size_t n_bytes)
{
    const unsigned char *p = data;
    size_t n_held = s->n_bytes % 64;
    s->n_bytes += n_bytes;
    while (n_bytes > 0) {
        size_t n = 64 - n_held < n_bytes ? 64 - n_held : n_bytes;
        memcpy(s->block + n_held, p, n);
        p += n, n_bytes -= n, n_held += n;
        if (n_held < 64) break;
        add_block(s->h, s->block);
        n_held = 0;
    }
}

static void put_number(uint64_t n, unsigned char bytes[8])
{
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> (56 - 8 * i));
}

void sha256_add_text(sha256 *s, const char *text, size_t n_bytes)
{
    unsigned char length[8];
    put_number(n_bytes, length);
    sha256_add(s, length, sizeof length);
    sha256_add(s, text, n_bytes);
}

void sha256_finish(sha256 *s, unsigned char digest[SHA256_BYTES])
{
    static const unsigned char padding[64] = {0x80};
    unsigned char length[8];
    put_number(s->n_bytes * 8, length);
    sha256_add(s, padding, 1 + (119 - s->n_bytes % 64) % 64);
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(s->h[i / 4] >> (24 - i % 4 * 8));
}

void sha256_of(const void *data, size_t n_bytes, unsigned char digest[SHA256_BYTES])
{
    sha256 s;
    sha256_init(&s);
    sha256_add(&s, data, n_bytes);
    sha256_finish(&s, digest);
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
    volatile unsigned char difference = 0;
    for (size_t i = 0; i < n_bytes; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}
