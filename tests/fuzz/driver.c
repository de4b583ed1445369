/* Runs a fuzz target without libFuzzer: every file of the folders given, then mutations of them
 * drawn from a fixed sequence (flipped, cut, repeated and spliced bytes), so that a failure can be
 * repeated. */
#include "base/philox.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_SEEDS = 512, MAX_BYTES = 1 << 20, MUTATIONS = 4000 };

static struct {
    uint8_t *data;
    size_t n;
} seeds[MAX_SEEDS];
static int n_seeds;

static void load(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) {
        perror(dir);
        exit(1);
    }
    for (struct dirent *e; (e = readdir(d)) && n_seeds < MAX_SEEDS;) {
        if (e->d_name[0] == '.') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        uint8_t *p = malloc(MAX_BYTES);
        size_t n = p ? fread(p, 1, MAX_BYTES, f) : 0;
        fclose(f);
        seeds[n_seeds].data = p;
        seeds[n_seeds++].n = n;
    }
    closedir(d);
}

/* The seed's bytes in a buffer of exactly their size, so that a sanitizer sees an overrun. */
static void run(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (!copy) abort();
    if (n) memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) load(argv[i]);
    if (n_seeds == 0) {
        fprintf(stderr, "no seeds\n");
        return 1;
    }
    for (int i = 0; i < n_seeds; i++) run(seeds[i].data, seeds[i].n);
    uint8_t *work = malloc(2 * MAX_BYTES);
    if (!work) abort();
    for (uint64_t m = 0; m < MUTATIONS; m++) {
        uint32_t r[4];
        philox4x32(1, m, 0, r);
        size_t n = seeds[r[0] % (uint32_t)n_seeds].n;
        memcpy(work, seeds[r[0] % (uint32_t)n_seeds].data, n);
        for (uint32_t k = 0; k <= r[1] % 4; k++) {
            uint32_t q[4];
            philox4x32(2, m, k, q);
            size_t at = n ? q[1] % n : 0;
            switch (q[0] % 5) {
            case 0:
                if (n) work[at] ^= (uint8_t)(1u << (q[2] % 8));
                break;
            case 1:
                if (n) work[at] = (uint8_t)q[2];
                break;
            case 2:
                n = at;
                break;
            case 3: {
                size_t length = n - at < q[2] % 64 ? n - at : q[2] % 64;
                if (n + length > MAX_BYTES) break;
                memmove(work + at + length, work + at, n - at);
                n += length;
                break;
            }
            default: {
                uint32_t other = q[2] % (uint32_t)n_seeds;
                size_t from = seeds[other].n ? q[3] % seeds[other].n : 0;
                size_t length = seeds[other].n - from;
                if (at + length > MAX_BYTES) length = MAX_BYTES - at;
                memcpy(work + at, seeds[other].data + from, length);
                n = at + length;
            }
            }
        }
        run(work, n);
    }
    free(work);
    for (int i = 0; i < n_seeds; i++) free(seeds[i].data);
    printf("%d seeds, %d mutations\n", n_seeds, MUTATIONS);
    return 0;
}
