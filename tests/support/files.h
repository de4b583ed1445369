/* Files that tests make: checkpoints of given headers, and copies of others with edits. */
#ifndef CALLA_TESTS_FILES_H
#define CALLA_TESTS_FILES_H

#include <stddef.h>

/* A file's bytes with a NUL behind them, malloc'ed; the test fails if it cannot be read. n may be
 * NULL. */
char *read_test_file(const char *path, size_t *n);
void write_test_file(const char *dir, const char *name, const void *bytes, size_t n);

/* The text as dir/name, whose folders are made. */
void put_test_file(const char *dir, const char *name, const char *text);

/* dir/name as a safetensors file: `header` (a length is put before it), then n_data bytes of
 * `data`, or of zeros if that is NULL. */
void write_safetensors(const char *dir, const char *name, const char *header, const void *data,
                       size_t n_data);

/* A replacement in a file's text. */
typedef struct text_edit {
    const char *from, *to; /* the first occurrence; the test fails if there is none */
} text_edit;

/* `text` with the edits applied, malloc'ed. */
char *edit_text(const char *text, const text_edit *edits, int n_edits);

/* A copy of the checkpoint in src_dir (config.json and model.safetensors) in a new temporary
 * directory (static storage of temporary_dir), with edits in config.json and in the header. */
const char *edit_checkpoint(const char *src_dir, const text_edit *config_edits, int n_config_edits,
                            const text_edit *header_edits, int n_header_edits);

#endif
