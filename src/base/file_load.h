/* Bringing parts of mapped files into memory: read ahead while they stay mapped, or copied into
 * memory of the process's own. In large pieces and by several threads, because a disk gives its
 * best only when it is asked for much at once. */
#ifndef CALLA_BASE_FILE_LOAD_H
#define CALLA_BASE_FILE_LOAD_H

#include "base/file.h"

/* Bytes [begin, end) of a file. */
typedef struct byte_range {
    size_t begin, end;
} byte_range;

typedef struct load_file {
    const char *path;
    mapped_file *map;
    const byte_range *ranges; /* [n_ranges] ascending, disjoint */
    int32_t n_ranges;
} load_file;

typedef struct load_control {
    void (*progress)(void *user, int64_t done_bytes, int64_t total_bytes); /* or NULL */
    void *user;
    const calla_flag *cancel; /* or NULL; polled per piece */
} load_control;

/* Reads the ranges ahead, file after file from front to back, where they are not in the page cache
 * already. A file that has become shorter is CALLA_ERR_IO, not a signal. */
calla_status files_warm_up(const load_file *files, int32_t n_files, const load_control *control,
                           calla_error *err);

/* Enters memory that is there into the process's page tables, as far as it can, so that a
 * measurement does not count that. */
void enter_pages(const void *p, size_t n);

/* Asks for memory of a map that will be needed soon; it is read while the caller goes on. */
void ask_for_pages(const void *p, size_t n);

/* Replaces the maps by memory that holds the ranges' bytes (and zeros elsewhere) at the same
 * addresses, in huge pages where the system has them; after that nothing that happens to the files
 * matters. With `keep_cached` the bytes go through the system's page cache and may stay there for
 * the next program; without it they go around it where they can, as memory may not hold both. After
 * a failure the maps are what they were, or copied; either way they can be used and closed. */
calla_status files_copy(const load_file *files, int32_t n_files, bool keep_cached,
                        const load_control *control, calla_error *err);

/* Keeps the ranges in memory from now on, as they come there (files_warm_up brings them). Returns
 * the number of bytes, 0 if the system does not permit it. */
int64_t files_lock(const load_file *files, int32_t n_files);

#endif
