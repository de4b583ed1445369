/* HTTP as bytes on a socket, for what an HTTP client would not send, and for clients that leave. */
#ifndef CALLA_TESTS_SERVER_RAW_H
#define CALLA_TESTS_SERVER_RAW_H

#include "server/server.h"

#include <stddef.h>

/* A connection to the server; to be closed. */
int raw_connect(const server *s);
/* Sends all of it; false when the server has closed. */
bool raw_send(int fd, const char *data, size_t n);
/* Reads an answer's head, and the body of which that tells the length (NUL-terminated, malloc'ed);
 * less when the server closes. Answers to HEAD and 100s have no body. */
char *raw_answer(int fd, bool has_body);
/* The status of an answer, 0 if it is none. */
int raw_status(const char *answer);
/* Waits until the server closes; how many bytes it sends before. */
size_t raw_rest(int fd);

/* A connection on which JSON has been posted. */
int raw_post(const server *s, const char *path, const char *body);
/* Takes n answers' places, of a server that runs nothing else, until the connection is closed: a
 * stream without an end, which nobody reads. The server needs a large context (what the sockets and
 * the server hold must fill up before it) and much patience with idle clients. */
int raw_occupy(const server *s, int n);

#endif
