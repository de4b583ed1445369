/* Snapshots in files, for when memory has no room for them and for after a restart.
 *
 * A directory holds one file for each snapshot, named by a random number, readable by its owner
 * only. A file is written under a temporary name by a thread of its own, synchronised and then
 * renamed, so whatever interrupts that, a file with its final name is whole. It says which model,
 * kernels and options it is of; others' files are left alone. What is read back is checked (size,
 * header, checksum) while it goes into a fresh snapshot, which is dropped if anything is wrong:
 * nothing else is touched.
 *
 * All functions but the writer's own are for the engine's thread. */
#ifndef CALLA_ENGINE_SNAPSHOT_FILES_H
#define CALLA_ENGINE_SNAPSHOT_FILES_H

#include "engine/snapshots.h"

typedef struct snapshot_files snapshot_files;

enum { SNAPSHOT_FILE_TOKENS = 256 /* shorter ones are not worth a file */ };

/* Opens or makes the directory, which must be no symbolic link and no other user's, and looks what
 * is there. `key` tells models apart, `decoded`: files of decoded state are of use. budget_bytes:
 * of all files; the least recently used go first. The store's backend must be able to save
 * snapshots. */
calla_status snapshot_files_open(const char *dir, int64_t budget_bytes, uint64_t key, bool decoded,
                                 snapshot_store *store, snapshot_files **files, calla_error *err);
/* Waits until everything that was to be written is. NULL is allowed. */
void snapshot_files_close(snapshot_files *f);

/* Has the snapshot of exactly tokens[n_tokens] written, if there is one and no file of it. */
void snapshot_files_save(snapshot_files *f, const int32_t *tokens, int64_t n_tokens);
/* Takes note of what has been written; waits for all that is begun if `wait`. */
void snapshot_files_collect(snapshot_files *f, bool wait);
/* Brings the deepest snapshot in a file of which tokens[n_tokens] has more than n_known as a proper
 * prefix into the store. */
void snapshot_files_restore(snapshot_files *f, const int32_t *tokens, int64_t n_tokens,
                            int64_t n_known);

#endif
