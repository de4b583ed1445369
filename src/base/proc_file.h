/* The small text files of /proc and /sys. They have no size: they are read as streams. */
#ifndef CALLA_BASE_PROC_FILE_H
#define CALLA_BASE_PROC_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The text after `key`, blanks and a colon on the first line of folder/name that begins with key
 * and one of these; the first line if key is NULL. False if there is none. */
bool proc_file_text(const char *folder, const char *name, const char *key, char *text, size_t n);

/* The same as a whole number >= 0; -1 if there is none. */
int64_t proc_file_number(const char *folder, const char *name, const char *key);

#endif
