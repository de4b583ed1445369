/* The open connections: how many there are, and that each brings a request in time. A client that
 * sends a byte now and then would otherwise keep its connection, and with many of them the server,
 * for ever. Safe from all threads; a thread of its own ends those that are late. */
#ifndef CALLA_SERVER_CONNECTIONS_H
#define CALLA_SERVER_CONNECTIONS_H

#include "base/error.h"

typedef struct connections connections;
typedef struct connection_entry connection_entry;

/* patience_ns: for a request to arrive whole. */
calla_status connections_create(int64_t patience_ns, connections **c, calla_error *err);
/* When none is open. NULL is allowed. */
void connections_free(connections *c);

/* A connection was accepted; NULL: no memory, it is not watched. */
connection_entry *connections_open(connections *c, int socket);
/* Before its socket is closed. NULL is allowed, here and below. */
void connections_close(connections *c, connection_entry *entry);
/* A request, or the rest of one, is waited for from now on. */
void connections_await(connections *c, connection_entry *entry);
/* The request is there: its answer may take its time. */
void connections_arrived(connections *c, connection_entry *entry);
/* How many are open. */
int32_t connections_count(connections *c);

#endif
