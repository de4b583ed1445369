#include "server/ids.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { N_RANDOM = 24 };

static void fill_random(unsigned char *bytes, size_t n)
{
    if (getrandom(bytes, n, 0) == (ssize_t)n) return;
    struct timespec now; /* no secrets here: only to differ */
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t x = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)now.tv_sec;
    for (size_t i = 0; i < n; i++) {
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
        bytes[i] = (unsigned char)(x >> 56);
    }
}

void id_make(const char *prefix, char *text, size_t n_text)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[N_RANDOM];
    size_t n = strlen(prefix);
    assert(n + N_RANDOM < n_text);
    memcpy(text, prefix, n);
    fill_random(random, sizeof random);
    for (size_t i = 0; i < N_RANDOM; i++) text[n + i] = letters[random[i] % (sizeof letters - 1)];
    text[n + N_RANDOM] = '\0';
}

uint64_t random_seed(void)
{
    unsigned char bytes[8];
    uint64_t seed;
    fill_random(bytes, sizeof bytes);
    memcpy(&seed, bytes, sizeof seed);
    return seed >> 11;
}
