/* Writing a checkpoint directory so that it appears whole or not at all; or its one weight file
 * into memory. */
#ifndef CALLA_MODEL_CHECKPOINT_WRITE_H
#define CALLA_MODEL_CHECKPOINT_WRITE_H

#include "base/file.h"
#include "base/threads.h"
#include "model/safetensors_write.h"

#include <calla/model.h>

enum { MAX_SIDE_FILES = 32 };

/* All files are written under temporary names and renamed by commit, config.json last. Abort
 * removes them, and the directory if open made it. */
typedef struct checkpoint_writer {
    const checkpoint_plan *plan;
    const calla_write_options *options;
    char *dir;
    bool made_dir;
    file_writer *files; /* [n_files] the plan's shards, then side files in the order added */
    char **paths;       /* [n_files] final names */
    int32_t n_files;
    unsigned char *memory; /* instead of files: all bytes of the plan's only shard */
    thread_pool *pool;
    int64_t total; /* of the progress reports */
    _Atomic int64_t done;
    atomic_bool failed; /* a thread of the current run failed: the others stop */
} checkpoint_writer;

/* Creates the directory if need be, refuses one that holds anything (unless options->overwrite) and
 * a disk without room for the plan and side_bytes more, then opens the shards and writes their
 * headers. `plan` and `options` must outlive the writer; progress_total is the sum of what
 * checkpoint_writer_run will report. */
calla_status checkpoint_writer_open(checkpoint_writer *w, const char *dir,
                                    const checkpoint_plan *plan, size_t side_bytes,
                                    int64_t progress_total, const calla_write_options *options,
                                    calla_error *err);
/* A writer of a plan with one shard into memory [plan->file_bytes], whose header the caller writes.
 * Reports the plan's tensor bytes as progress. End it with checkpoint_writer_abort. */
calla_status checkpoint_writer_open_memory(checkpoint_writer *w, unsigned char *memory,
                                           const checkpoint_plan *plan,
                                           const calla_write_options *options, calla_error *err);

/* Writes bytes at `offset` of the data of the plan's tensor `index`. Thread-safe. */
calla_status checkpoint_writer_put(checkpoint_writer *w, int32_t index, size_t offset,
                                   const void *bytes, size_t n, calla_error *err);

/* One piece of work, on any thread: items [begin, end), with `buffer` of the run's size. */
typedef calla_status (*checkpoint_piece_fn)(void *context, checkpoint_writer *w, int64_t begin,
                                            int64_t end, unsigned char *buffer, calla_error *err);
/* Runs `piece` on all threads for [0, n_items) in pieces of at most piece_items, polling the cancel
 * flag before each and reporting item_bytes of progress per item after it. */
calla_status checkpoint_writer_run(checkpoint_writer *w, int64_t n_items, int64_t piece_items,
                                   int64_t item_bytes, size_t buffer_bytes,
                                   checkpoint_piece_fn piece, void *context, calla_error *err);

/* A further file of the directory; config.json must come last. */
calla_status checkpoint_writer_add_file(checkpoint_writer *w, const char *name, const void *bytes,
                                        size_t n, calla_error *err);
/* Copies the tokenizer's and generation's files that exist in src_dir. */
calla_status checkpoint_writer_copy_side_files(checkpoint_writer *w, const char *src_dir,
                                               calla_error *err);
/* Their bytes. */
size_t checkpoint_side_file_bytes(const char *src_dir);

/* Makes everything durable and visible; with overwrite, what is left of the checkpoint that was
 * there before goes. Frees the writer, also on failure (then nothing of it is left). */
calla_status checkpoint_writer_commit(checkpoint_writer *w, calla_error *err);
/* Frees the writer and removes all it wrote. Does nothing after commit. */
void checkpoint_writer_abort(checkpoint_writer *w);

#endif
