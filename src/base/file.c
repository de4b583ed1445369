#include "base/file.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Opens a regular file for reading and gives its size. */
static calla_status open_regular(const char *path, int *fd, struct stat *st, calla_error *err)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer before it is refused below. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open %s", path);
    if (fstat(f, st) != 0) {
        int e = errno;
        close(f);
        return error_set_errno(err, CALLA_ERR_IO, e, "cannot stat %s", path);
    }
    if (!S_ISREG(st->st_mode)) {
        close(f);
        return error_set(err, CALLA_ERR_IO, "%s is not a regular file", path);
    }
    *fd = f;
    return CALLA_OK;
}

void *map_aligned(size_t n, int protection, int flags, int fd)
{
    const size_t huge = (size_t)2 << 20;
    if (n < huge) {
        void *p = mmap(NULL, n, protection, flags, fd, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    /* Room for it wherever it may begin, of which it takes its part. */
    size_t room = page_up(n) + huge;
    unsigned char *p =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t before = (huge - (uintptr_t)p % huge) % huge;
    if (mmap(p + before, n, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int e = errno;
        munmap(p, room);
        errno = e;
        return NULL;
    }
    if (before) munmap(p, before);
    munmap(p + before + (room - huge), huge - before);
    return p + before;
}

calla_status mapped_file_open(const char *path, mapped_file *file, calla_error *err)
{
    int fd;
    struct stat st;
    CALLA_TRY(open_regular(path, &fd, &st, err));
    size_t n = (size_t)st.st_size;
    void *p = n > 0 ? map_aligned(n, PROT_READ, MAP_SHARED, fd) : NULL;
    int e = errno;
    close(fd);
    if (n > 0 && !p) return error_set_errno(err, CALLA_ERR_IO, e, "cannot map %s", path);
    *file = (mapped_file){p, n, st.st_dev, st.st_ino};
    return CALLA_OK;
}

calla_status mapped_file_create_anonymous(size_t n, const char *what, mapped_file *file,
                                          unsigned char **memory, calla_error *err)
{
    void *p = map_aligned(n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!p)
        return error_set_errno(err, CALLA_ERR_MEMORY, errno, "%s: no memory for %zu bytes", what,
                               n);
    (void)madvise(p, n, MADV_HUGEPAGE); /* a help, not a need */
    *file = (mapped_file){.data = p, .n_bytes = n};
    *memory = p;
    return CALLA_OK;
}

void mapped_file_close(mapped_file *file)
{
    if (file->data) munmap((void *)(uintptr_t)file->data, file->n_bytes);
    *file = (mapped_file){0};
}

calla_status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes,
                       calla_error *err)
{
    int fd;
    struct stat st;
    CALLA_TRY(open_regular(path, &fd, &st, err));
    size_t n = (size_t)st.st_size;
    if (n > max_bytes) {
        close(fd);
        return error_set(err, CALLA_ERR_INPUT, "%s has %zu bytes, more than the %zu allowed", path,
                         n, max_bytes);
    }
    char *p = malloc(n + 1);
    if (!p) {
        close(fd);
        return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for %zu bytes", path, n);
    }
    size_t done = 0;
    while (done < n) {
        ssize_t r = read(fd, p + done, n - done);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            int e = errno;
            close(fd);
            free(p);
            return error_set_errno(err, CALLA_ERR_IO, e, "cannot read %s", path);
        }
        if (r == 0) break;
        done += (size_t)r;
    }
    close(fd);
    p[done] = '\0';
    *data = p;
    *n_bytes = done;
    return CALLA_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

calla_status dir_check(const char *path, calla_error *err)
{
    struct stat st;
    if (!*path) return error_set(err, CALLA_ERR_INPUT, "the name of a directory is empty");
    if (stat(path, &st) != 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open directory %s", path);
    if (!S_ISDIR(st.st_mode)) return error_set(err, CALLA_ERR_IO, "%s is not a directory", path);
    return CALLA_OK;
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    char *p = malloc(n + m + 2);
    if (!p) return NULL;
    memcpy(p, dir, n);
    if (n == 0 || dir[n - 1] != '/') p[n++] = '/';
    memcpy(p + n, name, m + 1);
    return p;
}

calla_status file_writer_open(file_writer *w, const char *path, calla_error *err)
{
    *w = FILE_WRITER_CLOSED;
    size_t n = strlen(path);
    w->path = strdup(path);
    w->temporary_path = malloc(n + 8);
    if (!w->path || !w->temporary_path) {
        file_writer_abort(w);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for the name of %s", path);
    }
    memcpy(w->temporary_path, path, n);
    memcpy(w->temporary_path + n, ".XXXXXX", 8);
    w->fd = mkostemp(w->temporary_path, O_CLOEXEC);
    if (w->fd < 0) {
        int e = errno;
        file_writer_abort(w);
        return error_set_errno(err, CALLA_ERR_IO, e, "cannot create a file beside %s", path);
    }
    return CALLA_OK;
}

calla_status file_writer_write(file_writer *w, const void *bytes, size_t n, calla_error *err)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t r = write(w->fd, p, n);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return error_set_errno(err, CALLA_ERR_IO, errno, "cannot write %s", w->path);
        p += r;
        n -= (size_t)r;
    }
    return CALLA_OK;
}

calla_status file_writer_commit(file_writer *w, calla_error *err)
{
    calla_status status = CALLA_OK;
    /* mkostemp makes the file private; the final file gets the usual permissions. */
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(w->fd, 0666 & ~mask) != 0 || fsync(w->fd) != 0 ||
        rename(w->temporary_path, w->path) != 0) {
        status = error_set_errno(err, CALLA_ERR_IO, errno, "cannot finish %s", w->path);
        file_writer_abort(w);
        return status;
    }
    if (close(w->fd) != 0)
        status = error_set_errno(err, CALLA_ERR_IO, errno, "cannot close %s", w->path);
    free(w->path);
    free(w->temporary_path);
    *w = FILE_WRITER_CLOSED;
    return status;
}

void file_writer_abort(file_writer *w)
{
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->temporary_path);
    }
    free(w->path);
    free(w->temporary_path);
    *w = FILE_WRITER_CLOSED;
}

calla_status file_write(const char *path, const void *bytes, size_t n, calla_error *err)
{
    file_writer w;
    calla_status status;
    CALLA_TRY(file_writer_open(&w, path, err));
    CALLA_TRY_GOTO(file_writer_write(&w, bytes, n, err), fail);
    return file_writer_commit(&w, err);
fail:
    file_writer_abort(&w);
    return status;
}

calla_status file_copy(const char *src, const char *dst, calla_error *err)
{
    mapped_file in;
    CALLA_TRY(mapped_file_open(src, &in, err));
    calla_status status = file_write(dst, in.data, in.n_bytes, err);
    mapped_file_close(&in);
    return status;
}

calla_status dir_create(const char *path, calla_error *err)
{
    if (!*path) return dir_check(path, err);
    if (mkdir(path, 0777) == 0) return CALLA_OK;
    int e = errno;
    struct stat st;
    if (e == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return CALLA_OK;
    return error_set_errno(err, CALLA_ERR_IO, e, "cannot create directory %s", path);
}

calla_status disk_free_bytes(const char *path, uint64_t *n_bytes, calla_error *err)
{
    struct statvfs vfs;
    if (statvfs(path, &vfs) != 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot see the free space of %s", path);
    *n_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    return CALLA_OK;
}
