#include "engine/snapshot_files.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/strbuf.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILES = 1024, MAX_QUEUE = 4, NAME_BYTES = 32, VERSION = 1 };
static const char suffix[] = ".snapshot", temporary_suffix[] = ".tmp";

/* What a file begins with; the tokens, the logits if there are any and the backend's content
 * follow, then the checksum of all of it. Numbers are the machine's own: files do not travel. */
typedef struct file_header {
    char magic[8];
    uint32_t version, n_vocab;
    uint64_t key;
    int64_t n_tokens, file_bytes;
    uint32_t has_logits, decoded;
} file_header;
static const char magic[8] = {'c', 'a', 'l', 'l', 'a', 'S', 'N', 'P'};

typedef struct file_entry {
    char name[NAME_BYTES];
    int32_t *tokens; /* [n_tokens] */
    int64_t n_tokens, n_bytes;
    int64_t last_used_ns; /* CLOCK_REALTIME, as the file's time of change */
} file_entry;

/* One snapshot on its way to a file. Its slot stays as it is meanwhile (snapshot_slot.saving). */
typedef struct write_job {
    snapshot_slot *slot;
    file_entry entry; /* takes its place in the index when it is written */
    bool done, failed;
} write_job;

struct snapshot_files {
    snapshot_store *store;
    int dir;
    int64_t budget;
    uint64_t key;
    bool decoded;
    file_entry entries[MAX_FILES]; /* [n_entries] */
    int32_t n_entries;
    int64_t n_bytes;
    pthread_t writer;
    bool writer_runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    write_job queue[MAX_QUEUE]; /* [n_queue] under the lock; first to be written first */
    int32_t n_queue;
    bool closing;
};

/* ---- bytes with a checksum ---- */

typedef struct summed_file {
    int fd;
    uint64_t sum;
    int64_t n_left; /* bytes that may still be read */
} summed_file;

static void add_to_sum(summed_file *f, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t sum = f->sum;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    for (; n > 0; p++, n--) sum = (sum ^ *p) * 0x100000001b3u;
    f->sum = sum;
}

static bool put_bytes(void *user, const void *bytes, size_t n)
{
    summed_file *f = user;
    const char *p = bytes;
    add_to_sum(f, bytes, n);
    while (n > 0) {
        ssize_t k = write(f->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool get_bytes(void *user, void *bytes, size_t n)
{
    summed_file *f = user;
    char *p = bytes;
    size_t n_read = 0;
    if (f->n_left < 0 || (uint64_t)f->n_left < n) return false;
    while (n_read < n) {
        ssize_t k = read(f->fd, p + n_read, n - n_read);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        n_read += (size_t)k;
    }
    f->n_left -= (int64_t)n;
    add_to_sum(f, bytes, n);
    return true;
}

/* ---- the writer ---- */

/* Nothing changes a slot that is being saved, so this needs no lock. */
static bool write_content(const snapshot_files *f, const write_job *job, summed_file *out)
{
    const snapshot_store *store = f->store;
    const snapshot_slot *slot = job->slot;
    file_header h = {.version = VERSION,
                     .n_vocab = (uint32_t)store->n_vocab,
                     .key = f->key,
                     .n_tokens = slot->n_tokens,
                     .file_bytes = job->entry.n_bytes,
                     .has_logits = slot->has_logits,
                     .decoded = slot->decoded};
    memcpy(h.magic, magic, sizeof magic);
    if (!put_bytes(out, &h, sizeof h) ||
        !put_bytes(out, slot->tokens, (size_t)slot->n_tokens * sizeof *slot->tokens) ||
        (slot->has_logits &&
         !put_bytes(out, slot->logits, (size_t)store->n_vocab * sizeof *slot->logits)) ||
        !store->ops->snapshot_save(store->backend, slot->state, put_bytes, out))
        return false;
    uint64_t sum = out->sum;
    return put_bytes(out, &sum, sizeof sum);
}

static bool write_file(const snapshot_files *f, const write_job *job)
{
    char name[NAME_BYTES + 8];
    snprintf(name, sizeof name, "%s%s", job->entry.name, temporary_suffix);
    int fd = openat(f->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    summed_file out = {.fd = fd};
    bool ok = write_content(f, job, &out) && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    ok = ok && renameat(f->dir, name, f->dir, job->entry.name) == 0 && fsync(f->dir) == 0;
    if (!ok) unlinkat(f->dir, name, 0);
    return ok;
}

static void *write_files(void *user)
{
    snapshot_files *f = user;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        int32_t i = 0;
        while (i < f->n_queue && f->queue[i].done) i++;
        if (i == f->n_queue) {
            if (f->closing) break;
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        write_job job = f->queue[i]; /* the queue moves when others before it are collected */
        pthread_mutex_unlock(&f->lock);
        bool ok = write_file(f, &job);
        pthread_mutex_lock(&f->lock);
        for (i = 0; i < f->n_queue; i++)
            if (f->queue[i].slot == job.slot) f->queue[i].done = true, f->queue[i].failed = !ok;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- the index ---- */

static void forget(snapshot_files *f, int32_t i)
{
    f->n_bytes -= f->entries[i].n_bytes;
    free(f->entries[i].tokens);
    f->entries[i] = f->entries[--f->n_entries];
}

static void remove_entry(snapshot_files *f, int32_t i)
{
    unlinkat(f->dir, f->entries[i].name, 0);
    forget(f, i);
}

/* Makes room for n_bytes; false if there can be none. */
static bool make_room(snapshot_files *f, int64_t n_bytes)
{
    if (n_bytes > f->budget) return false;
    while (f->n_entries == MAX_FILES || f->n_bytes + n_bytes > f->budget) {
        int32_t oldest = 0;
        for (int32_t i = 1; i < f->n_entries; i++)
            if (f->entries[i].last_used_ns < f->entries[oldest].last_used_ns) oldest = i;
        if (f->n_entries == 0) return false;
        remove_entry(f, oldest);
    }
    return true;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void touch(snapshot_files *f, file_entry *e)
{
    e->last_used_ns = now_ns();
    utimensat(f->dir, e->name, NULL, AT_SYMLINK_NOFOLLOW);
}

static file_entry *find_file(snapshot_files *f, const int32_t *tokens, int64_t n_tokens)
{
    for (int32_t i = 0; i < f->n_entries; i++) {
        file_entry *e = &f->entries[i];
        if (e->n_tokens == n_tokens &&
            memcmp(e->tokens, tokens, (size_t)n_tokens * sizeof *tokens) == 0)
            return e;
    }
    return NULL;
}

/* ---- reading ---- */

/* A file of this model as far as its header tells; -1 if it is not. */
static int open_file(const snapshot_files *f, const char *name, summed_file *in, file_header *h)
{
    struct stat st;
    int fd = openat(f->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    *in = (summed_file){.fd = fd};
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid()) {
        in->n_left = st.st_size;
        if (get_bytes(in, h, sizeof *h) && memcmp(h->magic, magic, sizeof magic) == 0 &&
            h->version == VERSION && h->key == f->key && h->file_bytes == st.st_size &&
            h->n_vocab == (uint32_t)f->store->n_vocab && h->n_tokens >= 1 &&
            h->n_tokens <= f->store->n_ctx && (!h->decoded || f->decoded))
            return fd;
    }
    close(fd);
    return -1;
}

static void add_entry(snapshot_files *f, const char *name)
{
    summed_file in;
    file_header h;
    struct stat st;
    int fd = open_file(f, name, &in, &h);
    if (fd < 0) return;
    size_t n_bytes = (size_t)h.n_tokens * sizeof(int32_t);
    int32_t *tokens = malloc(n_bytes);
    if (tokens && f->n_entries < MAX_FILES && get_bytes(&in, tokens, n_bytes) &&
        fstat(fd, &st) == 0) {
        file_entry *e = &f->entries[f->n_entries++];
        *e = (file_entry){.tokens = tokens, .n_tokens = h.n_tokens, .n_bytes = h.file_bytes};
        snprintf(e->name, sizeof e->name, "%s", name);
        e->last_used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        f->n_bytes += e->n_bytes;
        tokens = NULL;
    }
    free(tokens);
    close(fd);
}

static calla_status scan(snapshot_files *f, const char *dir, calla_error *err)
{
    int fd = openat(f->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0) close(fd);
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot read %s", dir);
    }
    for (struct dirent *e; (e = readdir(d));) {
        char unfinished[sizeof suffix + sizeof temporary_suffix];
        snprintf(unfinished, sizeof unfinished, "%s%s", suffix, temporary_suffix);
        if (text_ends_with(e->d_name, unfinished))
            unlinkat(f->dir, e->d_name, 0); /* of a run that was killed */
        else if (text_ends_with(e->d_name, suffix) && strlen(e->d_name) < NAME_BYTES)
            add_entry(f, e->d_name);
    }
    closedir(d);
    make_room(f, 0);
    return CALLA_OK;
}

/* The rest of a file whose header and tokens were read, into a fresh snapshot; others make way for
 * it. CALLA_ERR_IO if it is not what it says. */
static calla_status read_content(snapshot_files *f, const file_header *h, summed_file *in,
                                 float *logits, backend_snapshot **state)
{
    snapshot_store *store = f->store;
    uint64_t sum, expected;
    calla_status status;
    if (h->has_logits && !get_bytes(in, logits, (size_t)store->n_vocab * sizeof *logits))
        return CALLA_ERR_IO;
    do {
        status = store->ops->snapshot_load(store->backend, h->n_tokens, get_bytes, in, state, NULL);
    } while (status == CALLA_ERR_MEMORY && snapshot_store_evict(store));
    if (status != CALLA_OK) return status;
    sum = in->sum;
    if (get_bytes(in, &expected, sizeof expected) && in->n_left == 0 && sum == expected)
        return CALLA_OK;
    store->ops->snapshot_free(store->backend, *state);
    return CALLA_ERR_IO;
}

static calla_status read_file(snapshot_files *f, const file_entry *e)
{
    summed_file in;
    file_header h;
    backend_snapshot *state;
    calla_status status = CALLA_ERR_IO;
    size_t n_bytes = (size_t)e->n_tokens * sizeof(int32_t);
    int32_t *tokens = malloc(n_bytes);
    float *logits = malloc((size_t)f->store->n_vocab * sizeof *logits);
    int fd = open_file(f, e->name, &in, &h);
    if (!tokens || !logits)
        status = CALLA_ERR_MEMORY;
    else if (fd >= 0 && h.n_tokens == e->n_tokens && get_bytes(&in, tokens, n_bytes) &&
             memcmp(tokens, e->tokens, n_bytes) == 0)
        status = read_content(f, &h, &in, logits, &state);
    if (status == CALLA_OK)
        snapshot_store_adopt(f->store, state, tokens, h.n_tokens, h.has_logits ? logits : NULL,
                             h.decoded);
    free(tokens);
    free(logits);
    if (fd >= 0) close(fd);
    return status;
}

void snapshot_files_restore(snapshot_files *f, const int32_t *tokens, int64_t n_tokens,
                            int64_t n_known)
{
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; i < f->n_entries; i++) {
            const file_entry *e = &f->entries[i];
            if (e->n_tokens <= n_known || e->n_tokens >= n_tokens) continue;
            if (best >= 0 && e->n_tokens <= f->entries[best].n_tokens) continue;
            if (memcmp(e->tokens, tokens, (size_t)e->n_tokens * sizeof *tokens) == 0) best = i;
        }
        if (best < 0) return;
        calla_status status = read_file(f, &f->entries[best]);
        if (status == CALLA_OK) touch(f, &f->entries[best]);
        if (status != CALLA_ERR_IO) return;
        log_warn("%s in the cache directory is broken, and is removed", f->entries[best].name);
        remove_entry(f, best);
    }
}

/* ---- writing ---- */

static int64_t file_bytes(const snapshot_files *f, const snapshot_slot *slot)
{
    const snapshot_store *store = f->store;
    int64_t n = (int64_t)sizeof(file_header) + slot->n_tokens * (int64_t)sizeof(int32_t) +
                store->ops->snapshot_content_bytes(store->backend, slot->n_tokens);
    if (slot->has_logits) n += store->n_vocab * (int64_t)sizeof(float);
    return n + (int64_t)sizeof(uint64_t);
}

static bool make_entry(const snapshot_files *f, const snapshot_slot *slot, file_entry *e)
{
    uint64_t random;
    size_t n_bytes = (size_t)slot->n_tokens * sizeof *slot->tokens;
    *e = (file_entry){.n_tokens = slot->n_tokens, .n_bytes = file_bytes(f, slot)};
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    snprintf(e->name, sizeof e->name, "%016llx%s", (unsigned long long)random, suffix);
    e->tokens = malloc(n_bytes);
    if (e->tokens) memcpy(e->tokens, slot->tokens, n_bytes);
    return e->tokens != NULL;
}

void snapshot_files_save(snapshot_files *f, const int32_t *tokens, int64_t n_tokens)
{
    snapshot_files_collect(f, false);
    file_entry *known = find_file(f, tokens, n_tokens), e;
    snapshot_slot *slot = snapshot_store_find_exact(f->store, tokens, n_tokens);
    if (known) touch(f, known);
    if (known || !slot || slot->saving || n_tokens < SNAPSHOT_FILE_TOKENS) return;
    if (!make_room(f, file_bytes(f, slot)) || !make_entry(f, slot, &e)) return;
    pthread_mutex_lock(&f->lock);
    if (f->n_queue < MAX_QUEUE) { /* else the disk is too slow: this one is not saved */
        slot->saving = true;
        f->queue[f->n_queue++] = (write_job){.slot = slot, .entry = e};
        e.tokens = NULL;
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    free(e.tokens);
}

static void collect_job(snapshot_files *f, write_job *job)
{
    job->slot->saving = false;
    if (job->failed || f->n_entries == MAX_FILES) {
        if (job->failed) log_warn("a snapshot could not be written to the cache directory");
        unlinkat(f->dir, job->entry.name, 0);
        free(job->entry.tokens);
        return;
    }
    job->entry.last_used_ns = now_ns();
    f->entries[f->n_entries++] = job->entry;
    f->n_bytes += job->entry.n_bytes;
}

void snapshot_files_collect(snapshot_files *f, bool wait)
{
    pthread_mutex_lock(&f->lock);
    int32_t i = 0;
    while (i < f->n_queue) {
        if (f->queue[i].done) {
            collect_job(f, &f->queue[i]);
            memmove(f->queue + i, f->queue + i + 1, (size_t)(--f->n_queue - i) * sizeof *f->queue);
        } else if (wait) {
            pthread_cond_wait(&f->changed, &f->lock);
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* ---- opening ---- */

static calla_status open_directory(snapshot_files *f, const char *dir, calla_error *err)
{
    struct stat st;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot make %s", dir);
    f->dir = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (f->dir < 0 || fstat(f->dir, &st) != 0)
        return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open %s", dir);
    if (st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return error_set(err, CALLA_ERR_INPUT,
                         "%s belongs to another user, or others may write to it", dir);
    return CALLA_OK;
}

calla_status snapshot_files_open(const char *dir, int64_t budget_bytes, uint64_t key, bool decoded,
                                 snapshot_store *store, snapshot_files **out, calla_error *err)
{
    calla_status status = CALLA_OK;
    snapshot_files *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, CALLA_ERR_MEMORY, "no memory for a cache directory");
    f->store = store;
    f->dir = -1;
    f->budget = budget_bytes;
    f->key = key;
    f->decoded = decoded;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    CALLA_TRY_GOTO(open_directory(f, dir, err), fail);
    CALLA_TRY_GOTO(scan(f, dir, err), fail);
    int failure = pthread_create(&f->writer, NULL, write_files, f);
    if (failure != 0) {
        status = error_set_errno(err, CALLA_ERR_MEMORY, failure, "no thread to write snapshots");
        goto fail;
    }
    f->writer_runs = true;
    *out = f;
    return CALLA_OK;
fail:
    snapshot_files_close(f);
    return status;
}

void snapshot_files_close(snapshot_files *f)
{
    if (!f) return;
    if (f->writer_runs) {
        snapshot_files_collect(f, true);
        pthread_mutex_lock(&f->lock);
        f->closing = true;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->writer, NULL);
    }
    while (f->n_entries > 0) forget(f, f->n_entries - 1);
    if (f->dir >= 0) close(f->dir);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
