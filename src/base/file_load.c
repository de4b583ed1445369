#include "base/file_load.h"

#include "base/memory.h"
#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

enum {
    SMALLEST_PAGE = 4096,
    PIECE_BYTES = 8 << 20,
    MIN_READERS = 4, /* to keep a disk busy */
    MAX_READERS = 16,
};
/* Below this, starting threads would take longer than the work. */
static const size_t SMALL_BYTES = 64 << 20;

typedef struct piece {
    int32_t file;
    size_t begin, end; /* multiples of a page, the end perhaps beyond the file's */
} piece;

typedef struct job job;
typedef calla_status (*piece_fn)(job *j, const piece *p, calla_error *err);

struct job {
    const load_file *files;
    int32_t n_files;
    const load_control *control;
    piece_fn work;
    piece *pieces; /* [n_pieces] */
    size_t n_pieces, capacity;
    size_t total_bytes;
    _Atomic size_t next, done_bytes;
    _Atomic int failed; /* a calla_status: of the first failure */
    calla_error *err;
    /* files_copy alone: */
    bool keep_cached;
    unsigned char **copies; /* [n_files] where each file's bytes go */
    int *buffered, *direct; /* [n_files] descriptors; direct may be -1 */
};

/* ---- pieces ---- */

static calla_status add_pieces(job *j, int32_t file, byte_range range, calla_error *err)
{
    size_t begin = page_down(range.begin), end = page_up(range.end);
    for (size_t at = begin; at < end; at += PIECE_BYTES) {
        CALLA_TRY(mem_grow((void **)&j->pieces, &j->capacity, j->n_pieces + 1, sizeof(piece),
                           "list of pieces", err));
        piece p = {file, at, end - at < PIECE_BYTES ? end : at + PIECE_BYTES};
        j->pieces[j->n_pieces++] = p;
        j->total_bytes += p.end - p.begin;
    }
    return CALLA_OK;
}

static calla_status list_pieces(job *j, calla_error *err)
{
    for (int32_t f = 0; f < j->n_files; f++)
        for (int32_t i = 0; i < j->files[f].n_ranges; i++)
            CALLA_TRY(add_pieces(j, f, j->files[f].ranges[i], err));
    return CALLA_OK;
}

static bool is_cancelled(const job *j)
{
    return j->control->cancel && atomic_load(j->control->cancel);
}

static void fail_job(job *j, const calla_error *err)
{
    int none = CALLA_OK;
    if (atomic_compare_exchange_strong(&j->failed, &none, (int)err->code) && j->err) *j->err = *err;
}

/* One reader. The caller is reader 0 and reports. */
static void read_pieces(void *context, int64_t begin, int64_t end, int thread)
{
    job *j = context;
    (void)begin, (void)end;
    for (size_t i; !j->failed && (i = j->next++) < j->n_pieces;) {
        const piece *p = &j->pieces[i];
        calla_error err;
        calla_status status = is_cancelled(j) ? error_set(&err, CALLA_ERR_CANCELLED, "cancelled")
                                              : j->work(j, p, &err);
        if (status != CALLA_OK) fail_job(j, &err);
        j->done_bytes += p->end - p->begin;
        if (thread == 0 && j->control->progress && !j->failed)
            j->control->progress(j->control->user, (int64_t)j->done_bytes, (int64_t)j->total_bytes);
    }
}

static int count_readers(const job *j)
{
    int n = usable_processors();
    if (n < MIN_READERS) n = MIN_READERS;
    if (n > MAX_READERS) n = MAX_READERS;
    return j->total_bytes < SMALL_BYTES ? 1 : n;
}

static calla_status run_job(job *j, calla_error *err)
{
    thread_pool *pool;
    j->err = err;
    CALLA_TRY(thread_pool_create(count_readers(j), &pool, err));
    thread_pool_run(pool, thread_pool_size(pool), 1, read_pieces, j);
    thread_pool_free(pool);
    if (!j->failed && j->control->progress)
        j->control->progress(j->control->user, (int64_t)j->total_bytes, (int64_t)j->total_bytes);
    return (calla_status)j->failed;
}

static calla_status cut_short(const load_file *file, calla_error *err)
{
    return error_set(err, CALLA_ERR_IO, "%s has become shorter than the %zu bytes it had",
                     file->path, file->map->n_bytes);
}

/* The mapping's pages reach to the end of the file's last one. */
static unsigned char *address(const load_file *file, size_t offset)
{
    return (unsigned char *)(uintptr_t)file->map->data + offset;
}

/* The system tells what is in the page cache only to those who could write the file or own it; to
 * others it says "everything". */
static bool is_told(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (st.st_uid == geteuid() || access(path, W_OK) == 0);
}

typedef struct page_map {
    unsigned char cached[PIECE_BYTES / SMALLEST_PAGE]; /* [n] 1 for a page in the page cache */
    size_t n, n_cached;
} page_map;

/* What of a piece is in the page cache, for all we know. */
static void find_cached(const load_file *file, const piece *p, page_map *map)
{
    map->n = (p->end - p->begin) / page_bytes();
    map->n_cached = 0;
    if (!is_told(file->path) ||
        mincore(address(file, p->begin), p->end - p->begin, map->cached) != 0)
        memset(map->cached, 0, map->n);
    for (size_t i = 0; i < map->n; i++) map->n_cached += map->cached[i] &= 1;
}

/* ---- warming up ---- */

static void advise(const void *p, size_t n, int advice)
{
    size_t before = (uintptr_t)p % page_bytes();
    madvise((unsigned char *)(uintptr_t)p - before, n + before, advice);
}

void enter_pages(const void *p, size_t n)
{
    advise(p, n, MADV_POPULATE_READ);
}

void ask_for_pages(const void *p, size_t n)
{
    advise(p, n, MADV_WILLNEED);
}

static void touch_pages(const unsigned char *p, size_t n)
{
    unsigned char sum = 0;
    for (size_t i = 0; i < n; i += page_bytes()) sum ^= ((const volatile unsigned char *)p)[i];
    (void)sum;
}

/* Waits until pages that are on their way have come. */
static calla_status await_pages(const load_file *file, unsigned char *start, size_t n,
                                calla_error *err)
{
    if (madvise(start, n, MADV_POPULATE_READ) == 0) return CALLA_OK;
    int e = errno == EFAULT ? EIO : errno; /* EFAULT: what would have been a SIGBUS */
    struct stat st;
    if (stat(file->path, &st) == 0 && (uint64_t)st.st_size < file->map->n_bytes)
        return cut_short(file, err);
    if (e != EINVAL) return error_set_errno(err, CALLA_ERR_IO, e, "cannot read %s", file->path);
    touch_pages(start, n); /* an older system */
    return CALLA_OK;
}

/* What is there needs nothing: entering its pages one by one would take longer than the system's
 * entering some around each that is touched. */
static calla_status warm_piece(job *j, const piece *p, calla_error *err)
{
    const load_file *file = &j->files[p->file];
    page_map map;
    find_cached(file, p, &map);
    if (map.n_cached == map.n) return CALLA_OK;
    madvise(address(file, p->begin), p->end - p->begin, MADV_WILLNEED); /* all at once */
    for (size_t i = 0, end; i < map.n; i = end) {
        for (end = i; end < map.n && map.cached[end] == map.cached[i];) end++;
        if (map.cached[i]) continue;
        CALLA_TRY(await_pages(file, address(file, p->begin + i * page_bytes()),
                              (end - i) * page_bytes(), err));
    }
    return CALLA_OK;
}

calla_status files_warm_up(const load_file *files, int32_t n_files, const load_control *control,
                           calla_error *err)
{
    job j = {.files = files, .n_files = n_files, .control = control, .work = warm_piece};
    calla_status status = list_pieces(&j, err);
    if (status == CALLA_OK) status = run_job(&j, err);
    free(j.pieces);
    return status;
}

/* ---- copying ---- */

/* Reads [begin, begin + n) of the file; fewer bytes only at its end. `ask` >= n is a multiple of
 * a page for direct reads. */
static calla_status read_fully(const load_file *file, int fd, unsigned char *to, size_t begin,
                               size_t n, size_t ask, calla_error *err)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = pread(fd, to + done, ask - done, (off_t)(begin + done));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return error_set_errno(err, CALLA_ERR_IO, errno, "cannot read %s", file->path);
        if (r == 0) return cut_short(file, err);
        done += (size_t)r;
    }
    return CALLA_OK;
}

static calla_status copy_piece(job *j, const piece *p, calla_error *err)
{
    const load_file *file = &j->files[p->file];
    unsigned char *to = j->copies[p->file] + p->begin;
    int direct = j->direct[p->file], buffered = j->buffered[p->file];
    size_t ask = p->end - p->begin;
    size_t n = p->end > file->map->n_bytes ? file->map->n_bytes - p->begin : ask;
    page_map map;
    find_cached(file, p, &map);
    if (direct >= 0 && 2 * map.n_cached < map.n) {
        if (read_fully(file, direct, to, p->begin, n, ask, err) == CALLA_OK) return CALLA_OK;
        /* Some file systems take the flag and then refuse; a true failure will show again. */
    }
    CALLA_TRY(read_fully(file, buffered, to, p->begin, n, n, err));
    if (!j->keep_cached) /* rather than let the system choose what gives way */
        posix_fadvise(buffered, (off_t)p->begin, (off_t)n, POSIX_FADV_DONTNEED);
    return CALLA_OK;
}

static calla_status open_again(job *j, int32_t f, calla_error *err)
{
    const load_file *file = &j->files[f];
    struct stat st;
    j->buffered[f] = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (j->buffered[f] < 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open %s", file->path);
    if (fstat(j->buffered[f], &st) != 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot stat %s", file->path);
    if (st.st_dev != file->map->device || st.st_ino != file->map->inode)
        return error_set(err, CALLA_ERR_IO, "%s was replaced while it was opened", file->path);
    if (!j->keep_cached) j->direct[f] = open(file->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    return CALLA_OK;
}

static size_t map_bytes(const load_file *file)
{
    return page_up(file->map->n_bytes);
}

/* The memory that will take the map's place. */
static calla_status reserve_copy(job *j, int32_t f, calla_error *err)
{
    const load_file *file = &j->files[f];
    void *p = map_aligned(map_bytes(file), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!p)
        return error_set_errno(err, CALLA_ERR_MEMORY, errno, "%s: no memory for %zu bytes",
                               file->path, file->map->n_bytes);
    (void)madvise(p, map_bytes(file), MADV_HUGEPAGE); /* a help, not a need */
    j->copies[f] = p;
    return CALLA_OK;
}

/* Same address, so that whatever points into the map stays right. */
static calla_status put_copy(job *j, int32_t f, calla_error *err)
{
    const load_file *file = &j->files[f];
    size_t n = map_bytes(file);
    mprotect(j->copies[f], n, PROT_READ);
    if (mremap(j->copies[f], n, n, MREMAP_MAYMOVE | MREMAP_FIXED, address(file, 0)) == MAP_FAILED)
        return error_set_errno(err, CALLA_ERR_MEMORY, errno, "%s: cannot move the copy into place",
                               file->path);
    j->copies[f] = NULL;
    return CALLA_OK;
}

static calla_status copy_all(job *j, calla_error *err)
{
    void *copies;
    CALLA_TRY(mem_alloc((size_t)j->n_files, sizeof(unsigned char *) + 2 * sizeof(int),
                        "list of files", &copies, err));
    j->copies = copies;
    j->buffered = (int *)(void *)(j->copies + j->n_files);
    j->direct = j->buffered + j->n_files;
    for (int32_t f = 0; f < j->n_files; f++) j->buffered[f] = j->direct[f] = -1;
    for (int32_t f = 0; f < j->n_files; f++) {
        if (j->files[f].n_ranges == 0) continue;
        CALLA_TRY(open_again(j, f, err));
        CALLA_TRY(reserve_copy(j, f, err));
    }
    CALLA_TRY(run_job(j, err));
    for (int32_t f = 0; f < j->n_files; f++)
        if (j->copies[f]) CALLA_TRY(put_copy(j, f, err));
    return CALLA_OK;
}

calla_status files_copy(const load_file *files, int32_t n_files, bool keep_cached,
                        const load_control *control, calla_error *err)
{
    job j = {.files = files,
             .n_files = n_files,
             .control = control,
             .work = copy_piece,
             .keep_cached = keep_cached};
    calla_status status = list_pieces(&j, err);
    if (status == CALLA_OK) status = copy_all(&j, err);
    for (int32_t f = 0; j.copies && f < n_files; f++) {
        if (j.copies[f]) munmap(j.copies[f], map_bytes(&files[f]));
        if (j.buffered[f] >= 0) close(j.buffered[f]);
        if (j.direct[f] >= 0) close(j.direct[f]);
    }
    mem_free(j.copies);
    free(j.pieces);
    return status;
}

/* ---- locking ---- */

static bool lock_range(const load_file *file, byte_range range, bool lock)
{
    size_t begin = page_down(range.begin);
    unsigned char *p = address(file, begin);
    if (lock) return mlock2(p, range.end - begin, MLOCK_ONFAULT) == 0;
    munlock(p, range.end - begin);
    return true;
}

int64_t files_lock(const load_file *files, int32_t n_files)
{
    int64_t n_bytes = 0;
    bool permitted = true;
    for (int32_t f = 0; f < n_files && permitted; f++)
        for (int32_t i = 0; i < files[f].n_ranges && permitted; i++) {
            byte_range range = files[f].ranges[i];
            permitted = lock_range(&files[f], range, true);
            n_bytes += (int64_t)(range.end - range.begin);
        }
    if (permitted) return n_bytes;
    for (int32_t f = 0; f < n_files; f++)
        for (int32_t i = 0; i < files[f].n_ranges; i++)
            lock_range(&files[f], files[f].ranges[i], false);
    return 0;
}
