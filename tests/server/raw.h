/* HTTP as bytes on a socket, for what an HTTP client would not send. */
#ifndef CALLA_TESTS_SERVER_RAW_H
#define CALLA_TESTS_SERVER_RAW_H

#include "server/server.h"

#include <stddef.h>

/* A connection to the server; to be closed. */
int raw_connect(const server *s);
/* Sends all of it; false when the server has closed. */
bool raw_send(int fd, const char *data, size_t n);
/* Reads until the server closes or, after something came, nothing does for `quiet_ms`
 * (NUL-terminated, malloc'ed); *closed: which of them. */
char *raw_read(int fd, int quiet_ms, bool *closed);
/* The status of an answer, 0 if it is none. */
int raw_status(const char *answer);

#endif
