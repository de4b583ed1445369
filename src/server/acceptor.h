/* Accepts connections, and looks at the first bytes of each before it is handed on: libmicrohttpd
 * drops without a word what is no HTTP, such as TLS, whose sender would wait for long. */
#ifndef CALLA_SERVER_ACCEPTOR_H
#define CALLA_SERVER_ACCEPTOR_H

#include "base/error.h"

#include <sys/socket.h>

typedef struct acceptor acceptor;

/* Takes a connection over, and its socket, or gives false: there are too many. */
typedef bool acceptor_take_fn(void *user, int socket, const struct sockaddr *address, socklen_t n);

/* Begins to accept, in a thread of its own. listen_socket is the acceptor's when this succeeds.
 * patience_ns: for a connection's first byte. */
calla_status acceptor_start(int listen_socket, int64_t patience_ns, acceptor_take_fn *take,
                            void *user, acceptor **a, calla_error *err);
/* Accepts no more: closes the socket, and the connections that have not been handed on. NULL is
 * allowed. */
void acceptor_stop(acceptor *a);

/* Whether a connection that begins with these bytes can be HTTP: a method, then a space. */
bool acceptor_is_http(const char *bytes, size_t n);

#endif
