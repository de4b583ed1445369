/* Reading the two large tables of tokenizer.json without a JSON tree: where they stand in the text,
 * and a strict cursor over what they are made of. */
#ifndef CALLA_MODEL_TOKENIZER_SCAN_H
#define CALLA_MODEL_TOKENIZER_SCAN_H

#include "base/strbuf.h"

/* A half-open range of bytes of the text; end 0 = not there. */
typedef struct text_range {
    size_t begin, end;
} text_range;

/* Where the values of model.vocab (an object) and model.merges (an array) stand. The scan knows
 * strings and nesting and takes the rest on trust. */
void scan_find_tables(const char *text, size_t n_bytes, text_range *vocab, text_range *merges);

/* A position in a text of valid UTF-8; `path` and `table` name it in errors. */
typedef struct scan_cursor {
    const char *text;
    size_t at, end;
    const char *path, *table;
    calla_error *err;
    strbuf scratch; /* an unescaped string; freed by the owner */
} scan_cursor;

/* Reports that something else stands at the cursor. */
calla_status scan_error(scan_cursor *c, const char *expected);
/* Goes past blanks and then past `byte`, if that is next. */
bool scan_accept(scan_cursor *c, char byte);
/* A string: *string [*n] points into the text or, where it has escapes, into the scratch string,
 * which the next call overwrites. */
calla_status scan_string(scan_cursor *c, const char **string, size_t *n);
/* A whole number from 0 to max. */
calla_status scan_number(scan_cursor *c, int32_t max, int32_t *number);

#endif
