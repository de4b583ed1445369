/* Files: mapped, read whole, written so that nothing half-written keeps its final name. */
#ifndef CALLA_BASE_FILE_H
#define CALLA_BASE_FILE_H

#include "base/error.h"

#include <unistd.h>

/* A regular file mapped read-only. */
typedef struct mapped_file {
    const unsigned char *data; /* [n_bytes]; NULL for an empty file */
    size_t n_bytes;
    uint64_t device, inode; /* which file it is; 0 for memory in the place of one */
} mapped_file;

/* Errors name the path; a directory or other non-regular file is CALLA_ERR_IO. The map begins at a
 * multiple of a huge page. */
calla_status mapped_file_open(const char *path, mapped_file *file, calla_error *err);
void mapped_file_close(mapped_file *file);

/* The system's page, and n rounded to whole ones. */
static inline size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}
static inline size_t page_down(size_t n)
{
    return n / page_bytes() * page_bytes();
}
static inline size_t page_up(size_t n)
{
    return page_down(n + page_bytes() - 1);
}

/* mmap of n > 0 bytes that begin at a multiple of a huge page, if n is one or more; NULL with errno
 * set when it fails. */
void *map_aligned(size_t n, int protection, int flags, int fd);

/* Memory in the place of a mapped file: n > 0 bytes, zeroed when first touched, in huge pages where
 * the system has them. *memory is file->data, for writing. `what` is named in the error. */
calla_status mapped_file_create_anonymous(size_t n, const char *what, mapped_file *file,
                                          unsigned char **memory, calla_error *err);

/* Reads a whole regular file of at most max_bytes (CALLA_ERR_INPUT with both numbers above that).
 * *data is malloc'ed with a NUL after it. */
calla_status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes,
                       calla_error *err);
bool file_exists(const char *path);

/* Whether `path` names a directory; the error says why not. An empty name is refused here, before
 * path_join makes the root of it. */
calla_status dir_check(const char *path, calla_error *err);
/* dir + "/" + name, malloc'ed; NULL when out of memory. */
char *path_join(const char *dir, const char *name);

/* Writing through a temporary file beside the final one: file_writer_commit syncs and renames,
 * file_writer_abort removes it. Both close; abort after commit (or twice) does nothing. */
typedef struct file_writer {
    int fd; /* -1 when closed */
    char *path, *temporary_path;
} file_writer;
#define FILE_WRITER_CLOSED                                                                         \
    (file_writer)                                                                                  \
    {                                                                                              \
        -1, NULL, NULL                                                                             \
    }
calla_status file_writer_open(file_writer *w, const char *path, calla_error *err);
calla_status file_writer_write(file_writer *w, const void *bytes, size_t n, calla_error *err);
calla_status file_writer_commit(file_writer *w, calla_error *err);
void file_writer_abort(file_writer *w);

/* A small file in one go, through a file_writer. */
calla_status file_write(const char *path, const void *bytes, size_t n, calla_error *err);
/* Copies src to dst through a file_writer. */
calla_status file_copy(const char *src, const char *dst, calla_error *err);
/* mkdir -p of the last component; an existing directory is fine, an empty name is not. */
calla_status dir_create(const char *path, calla_error *err);
/* Bytes an unprivileged writer may still use on the file system of `path`. */
calla_status disk_free_bytes(const char *path, uint64_t *n_bytes, calla_error *err);

#endif
