#include "model/checkpoint_write.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What belongs to a checkpoint beside config.json, weights and index. */
static const char *const side_files[] = {
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
};
enum { N_SIDE_FILES = sizeof side_files / sizeof side_files[0] };

/* ---- the directory ---- */

/* The first entry of a directory other than "." and "..", or NULL if there is none. */
static calla_status first_entry(const char *dir, char **name, calla_error *err)
{
    DIR *d = opendir(dir);
    if (!d) return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open directory %s", dir);
    *name = NULL;
    struct dirent *e;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) break;
    if (e) *name = strdup(e->d_name);
    closedir(d);
    if (e && !*name) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for a name", dir);
    return CALLA_OK;
}

static calla_status prepare_dir(checkpoint_writer *w, calla_error *err)
{
    struct stat st;
    bool existed = stat(w->dir, &st) == 0;
    if (existed && !S_ISDIR(st.st_mode))
        return error_set(err, CALLA_ERR_INPUT, "%s exists and is not a directory", w->dir);
    CALLA_TRY(dir_create(w->dir, err));
    w->made_dir = !existed;
    if (!existed || w->options->overwrite) return CALLA_OK;
    char *name;
    CALLA_TRY(first_entry(w->dir, &name, err));
    if (!name) return CALLA_OK;
    error_set(err, CALLA_ERR_INPUT,
              "%s is not empty (it holds %s), and overwriting was not asked for", w->dir, name);
    free(name);
    return CALLA_ERR_INPUT;
}

static calla_status check_disk(const char *dir, size_t need, calla_error *err)
{
    uint64_t available;
    CALLA_TRY(disk_free_bytes(dir, &available, err));
    /* File systems keep some of their own beside the data. */
    uint64_t want = (uint64_t)need + need / 256 + (1 << 20);
    if (available < want)
        return error_set(err, CALLA_ERR_IO,
                         "%s: the disk has %.3f GB free, %.3f GB are needed; nothing was written",
                         dir, (double)available * 1e-9, (double)want * 1e-9);
    return CALLA_OK;
}

static calla_status add_writer(checkpoint_writer *w, const char *name, calla_error *err)
{
    assert(w->n_files < w->plan->n_shards + MAX_SIDE_FILES);
    char *path = path_join(w->dir, name);
    if (!path) return error_set(err, CALLA_ERR_MEMORY, "no memory for the name of %s", name);
    calla_status status = file_writer_open(&w->files[w->n_files], path, err);
    if (status != CALLA_OK) {
        free(path);
        return status;
    }
    w->paths[w->n_files++] = path;
    return CALLA_OK;
}

static calla_status open_files(checkpoint_writer *w, calla_error *err)
{
    size_t n = (size_t)w->plan->n_shards + MAX_SIDE_FILES;
    w->files = calloc(n, sizeof *w->files);
    w->paths = calloc(n, sizeof *w->paths);
    if (!w->files || !w->paths)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for %zu files", n);
    for (int32_t k = 0; k < w->plan->n_shards; k++) {
        const planned_shard *shard = &w->plan->shards[k];
        CALLA_TRY(add_writer(w, shard->name, err));
        CALLA_TRY(file_writer_write(&w->files[k], shard->header, shard->n_header_bytes, err));
    }
    return CALLA_OK;
}

calla_status checkpoint_writer_open(checkpoint_writer *w, const char *dir,
                                    const checkpoint_plan *plan, size_t side_bytes,
                                    int64_t progress_total, const calla_write_options *options,
                                    calla_error *err)
{
    *w = (checkpoint_writer){.plan = plan, .options = options, .total = progress_total};
    calla_status status;
    w->dir = strdup(dir);
    if (!w->dir) return error_set(err, CALLA_ERR_MEMORY, "no memory for the name of %s", dir);
    CALLA_TRY_GOTO(prepare_dir(w, err), fail);
    CALLA_TRY_GOTO(check_disk(dir, plan->file_bytes + side_bytes, err), fail);
    CALLA_TRY_GOTO(thread_pool_create(usable_processors(), &w->pool, err), fail);
    CALLA_TRY_GOTO(open_files(w, err), fail);
    return CALLA_OK;
fail:
    checkpoint_writer_abort(w);
    return status;
}

calla_status checkpoint_writer_open_memory(checkpoint_writer *w, unsigned char *memory,
                                           const checkpoint_plan *plan,
                                           const calla_write_options *options, calla_error *err)
{
    assert(plan->n_shards == 1);
    *w = (checkpoint_writer){
        .plan = plan, .options = options, .memory = memory, .total = (int64_t)plan->tensor_bytes};
    return thread_pool_create(usable_processors(), &w->pool, err);
}

/* ---- content ---- */

calla_status checkpoint_writer_put(checkpoint_writer *w, int32_t index, size_t offset,
                                   const void *bytes, size_t n, calla_error *err)
{
    const planned_tensor *t = &w->plan->tensors[index];
    assert(offset <= t->n_bytes && n <= t->n_bytes - offset);
    if (w->memory) {
        memcpy(w->memory + t->offset + offset, bytes, n);
        return CALLA_OK;
    }
    const char *p = bytes;
    off_t at = (off_t)(t->offset + offset);
    while (n > 0) {
        ssize_t r = pwrite(w->files[t->shard].fd, p, n, at);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0)
            return error_set_errno(err, CALLA_ERR_IO, errno, "cannot write %s", w->paths[t->shard]);
        p += r;
        at += r;
        n -= (size_t)r;
    }
    return CALLA_OK;
}

typedef struct run_context {
    checkpoint_writer *writer;
    int64_t piece_items, item_bytes;
    size_t buffer_bytes;
    checkpoint_piece_fn piece;
    void *context;
    calla_status *statuses; /* [n_threads] */
    calla_error *errors;    /* [n_threads] */
} run_context;

static calla_status run_pieces(run_context *r, int64_t begin, int64_t end, int thread,
                               calla_error *err)
{
    checkpoint_writer *w = r->writer;
    const calla_write_options *o = w->options;
    unsigned char *buffer = malloc(r->buffer_bytes);
    if (!buffer)
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a buffer of %zu bytes",
                         r->buffer_bytes);
    calla_status status = CALLA_OK;
    for (int64_t i = begin; i < end && status == CALLA_OK && !atomic_load(&w->failed);) {
        int64_t next = end - i < r->piece_items ? end : i + r->piece_items;
        if (o->cancel && atomic_load(o->cancel))
            status = error_set(err, CALLA_ERR_CANCELLED, "cancelled; nothing was left in %s",
                               w->memory ? "memory" : w->dir);
        else
            status = r->piece(r->context, w, i, next, buffer, err);
        int64_t bytes = (next - i) * r->item_bytes;
        int64_t done = atomic_fetch_add(&w->done, bytes) + bytes;
        if (thread == 0 && o->progress && status == CALLA_OK) o->progress(o->user, done, w->total);
        i = next;
    }
    free(buffer);
    return status;
}

static void run_range(void *context, int64_t begin, int64_t end, int thread)
{
    run_context *r = context;
    r->statuses[thread] = run_pieces(r, begin, end, thread, &r->errors[thread]);
    if (r->statuses[thread] != CALLA_OK) atomic_store(&r->writer->failed, true);
}

calla_status checkpoint_writer_run(checkpoint_writer *w, int64_t n_items, int64_t piece_items,
                                   int64_t item_bytes, size_t buffer_bytes,
                                   checkpoint_piece_fn piece, void *context, calla_error *err)
{
    size_t n_threads = (size_t)thread_pool_size(w->pool);
    run_context r = {w,
                     piece_items,
                     item_bytes,
                     buffer_bytes,
                     piece,
                     context,
                     calloc(n_threads, sizeof *r.statuses),
                     calloc(n_threads, sizeof *r.errors)};
    calla_status status = CALLA_OK;
    if (!r.statuses || !r.errors)
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for %zu threads", n_threads);
    else
        thread_pool_run(w->pool, n_items, piece_items, run_range, &r);
    for (size_t t = 0; status == CALLA_OK && t < n_threads; t++) {
        status = r.statuses[t];
        if (status != CALLA_OK && err) *err = r.errors[t];
    }
    free(r.statuses);
    free(r.errors);
    return status;
}

/* ---- other files ---- */

calla_status checkpoint_writer_add_file(checkpoint_writer *w, const char *name, const void *bytes,
                                        size_t n, calla_error *err)
{
    CALLA_TRY(add_writer(w, name, err));
    return file_writer_write(&w->files[w->n_files - 1], bytes, n, err);
}

calla_status checkpoint_writer_copy_side_files(checkpoint_writer *w, const char *src_dir,
                                               calla_error *err)
{
    for (int i = 0; i < N_SIDE_FILES; i++) {
        char *src = path_join(src_dir, side_files[i]);
        if (!src) return error_set(err, CALLA_ERR_MEMORY, "no memory for a path");
        calla_status status = CALLA_OK;
        if (file_exists(src)) {
            mapped_file in;
            status = mapped_file_open(src, &in, err);
            if (status == CALLA_OK) {
                status = checkpoint_writer_add_file(w, side_files[i], in.data, in.n_bytes, err);
                mapped_file_close(&in);
            }
        }
        free(src);
        CALLA_TRY(status);
    }
    return CALLA_OK;
}

size_t checkpoint_side_file_bytes(const char *src_dir)
{
    size_t n = 0;
    for (int i = 0; i < N_SIDE_FILES; i++) {
        char *src = path_join(src_dir, side_files[i]);
        struct stat st;
        if (src && stat(src, &st) == 0 && st.st_size > 0) n += (size_t)st.st_size;
        free(src);
    }
    return n;
}

/* ---- the end ---- */

static bool is_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return true;
}

/* Whether a file name is one a checkpoint of ours has, in full or with a temporary's ending. */
static bool is_checkpoint_file(const char *name, bool *temporary)
{
    char base[64];
    size_t n = strlen(name);
    if (n >= sizeof base) return false;
    for (int cut = 0; cut <= 7 && (size_t)cut < n; cut += 7) {
        memcpy(base, name, n - (size_t)cut);
        base[n - (size_t)cut] = '\0';
        *temporary = cut > 0;
        if (cut > 0 && name[n - 7] != '.') return false;
        if (!strcmp(base, "config.json") || !strcmp(base, "model.safetensors") ||
            !strcmp(base, "model.safetensors.index.json"))
            return true;
        if (n - (size_t)cut == strlen("model-00001-of-00001.safetensors") &&
            !memcmp(base, "model-", 6) && is_digits(base + 6, 5) && !memcmp(base + 11, "-of-", 4) &&
            is_digits(base + 15, 5) && !strcmp(base + 20, ".safetensors"))
            return true;
        for (int i = 0; i < N_SIDE_FILES; i++)
            if (!strcmp(base, side_files[i])) return true;
    }
    return false;
}

static bool is_own_temporary(const checkpoint_writer *w, const char *path)
{
    for (int32_t i = 0; i < w->n_files; i++)
        if (w->files[i].temporary_path && !strcmp(w->files[i].temporary_path, path)) return true;
    return false;
}

static calla_status remove_file(const char *path, calla_error *err)
{
    if (unlink(path) == 0 || errno == ENOENT) return CALLA_OK;
    return error_set_errno(err, CALLA_ERR_IO, errno, "cannot remove %s", path);
}

/* Removes the checkpoint that was there before (and what a killed run left), config.json first:
 * from then on nothing opens until the new config.json has its name. */
static calla_status remove_old_checkpoint(const checkpoint_writer *w, calla_error *err)
{
    calla_status status = CALLA_OK;
    char *config = path_join(w->dir, "config.json");
    if (!config) return error_set(err, CALLA_ERR_MEMORY, "no memory for a path");
    status = remove_file(config, err);
    free(config);
    CALLA_TRY(status);
    DIR *d = opendir(w->dir);
    if (!d) return error_set_errno(err, CALLA_ERR_IO, errno, "cannot open directory %s", w->dir);
    struct dirent *e;
    while (status == CALLA_OK && (e = readdir(d))) {
        bool temporary;
        if (!is_checkpoint_file(e->d_name, &temporary)) continue;
        char *path = path_join(w->dir, e->d_name);
        if (!path)
            status = error_set(err, CALLA_ERR_MEMORY, "no memory for a path");
        else if (!temporary || !is_own_temporary(w, path))
            status = remove_file(path, err);
        free(path);
    }
    closedir(d);
    return status;
}

static void sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return; /* the files themselves are synced */
    fsync(fd);
    close(fd);
}

calla_status checkpoint_writer_commit(checkpoint_writer *w, calla_error *err)
{
    calla_status status = CALLA_OK;
    int32_t n_done = 0;
    /* A disk that filled up may say so only now: before any name changes. */
    for (int32_t i = 0; i < w->n_files; i++) {
        const atomic_bool *cancel = w->options->cancel;
        if (cancel && atomic_load(cancel)) {
            status =
                error_set(err, CALLA_ERR_CANCELLED, "cancelled; nothing was left in %s", w->dir);
            goto done;
        }
        if (fsync(w->files[i].fd) != 0) {
            status = error_set_errno(err, CALLA_ERR_IO, errno, "cannot write %s", w->paths[i]);
            goto done;
        }
    }
    if (w->options->overwrite) CALLA_TRY_GOTO(remove_old_checkpoint(w, err), done);
    for (; n_done < w->n_files; n_done++)
        CALLA_TRY_GOTO(file_writer_commit(&w->files[n_done], err), done);
    sync_dir(w->dir);
    w->made_dir = false;
done:
    for (int32_t i = 0; status != CALLA_OK && i < n_done; i++) unlink(w->paths[i]);
    checkpoint_writer_abort(w);
    return status;
}

void checkpoint_writer_abort(checkpoint_writer *w)
{
    for (int32_t i = 0; i < w->n_files; i++) {
        if (w->files[i].path) file_writer_abort(&w->files[i]);
        free(w->paths[i]);
    }
    if (w->made_dir) rmdir(w->dir);
    free(w->files);
    free(w->paths);
    free(w->dir);
    thread_pool_free(w->pool);
    *w = (checkpoint_writer){0};
}
