/* The server's log: one line per event, as text or as JSON. Any thread may write. */
#ifndef CALLA_SERVER_SERVER_LOG_H
#define CALLA_SERVER_SERVER_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct server_log {
    FILE *file; /* NULL = nowhere */
    bool json;
    bool verbose; /* also what is only of use when looking for a fault */
} server_log;

/* "TIME event name=value ..." or {"time", "event", ...}. Takes over `fields`, an object of numbers,
 * strings, booleans and lists of them; NULL (no memory) writes nothing. */
void server_log_put(const server_log *log, const char *event, json_t *fields);
/* A string for it from bytes that may not be UTF-8: then all but ASCII is written as "<ff>". NULL:
 * no memory. */
json_t *server_log_text(const char *bytes, size_t n_bytes);

#endif
