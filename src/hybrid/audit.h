/* The audit: a log of what left for the cloud and of what was kept from leaving, in an SQLite file
 * that is only ever appended to.
 *
 * What leaves gets two rows: an intent, which is on the disk before the first byte goes, and an
 * outcome after the last. An intent without an outcome is a request that a crash cut off: it may
 * have left. Every row holds the SHA-256 of the one before it together with its own content, so
 * that a row that was changed, taken out or moved shows. Rows missing at the end do not show from
 * the file alone: whoever can write it can also shorten it, or make a new one. Therefore audit_head
 * gives the last row's number and hash, to be kept elsewhere, and audit_verify takes them.
 *
 * Several processes may append to one file. */
#ifndef CALLA_HYBRID_AUDIT_H
#define CALLA_HYBRID_AUDIT_H

#include "base/json.h"
#include "hybrid/sha256.h"

typedef struct audit audit;

typedef enum audit_kind {
    AUDIT_INTENT,  /* it is about to leave */
    AUDIT_OUTCOME, /* what became of the intent `reference` */
    AUDIT_KEPT,    /* nothing left: it was kept here, refused, or has to be asked for */
    AUDIT_N_KINDS,
} audit_kind;
const char *audit_kind_name(audit_kind kind);

typedef struct audit_row {
    int64_t number;  /* 1, 2 ... without a gap */
    int64_t time_ms; /* since 1970 */
    audit_kind kind;
    int64_t reference; /* AUDIT_OUTCOME: the intent's number, else 0 */
    const char *body;  /* JSON object, see hybrid.h; borrowed */
    char hash[SHA256_HEX];
} audit_row;

typedef struct audit_mark {
    int64_t number; /* 0 = the file has no rows */
    char hash[SHA256_HEX];
} audit_mark;

/* Opens the file for appending, or makes it (mode 0600). */
calla_status audit_open(const char *path, audit **a, calla_error *err);
/* Opens an existing file for reading alone. */
calla_status audit_open_to_read(const char *path, audit **a, calla_error *err);
void audit_close(audit *a);

/* Appends a row; it is on the disk when this returns. *number (may be NULL) is its number. Any
 * thread. */
calla_status audit_append(audit *a, audit_kind kind, int64_t reference, const json_t *body,
                          int64_t *number, calla_error *err);
/* The last row. */
calla_status audit_head(audit *a, audit_mark *mark, calla_error *err);

/* Calls `take` with each row in order, from number `first` on, until it gives false. */
typedef bool audit_take_fn(void *user, const audit_row *row);
calla_status audit_read(audit *a, int64_t first, audit_take_fn *take, void *user, calla_error *err);

/* Checks every row against the chain. CALLA_ERR_INPUT names the first row that does not fit; with
 * `expected`, also that the file still has that row. *mark is the last row that does fit. */
calla_status audit_verify(audit *a, const audit_mark *expected, audit_mark *mark, calla_error *err);

#endif
