/* HTTP on libmicrohttpd: one thread a connection. Endpoints get requests whose sender may use the
 * server and whose body is whole, and answer with http_respond_*. */
#ifndef CALLA_SERVER_HTTP_H
#define CALLA_SERVER_HTTP_H

#include "server/context.h"
#include "server/reply.h"

typedef struct http_request http_request;

/* False with *e set: answered with that. Otherwise it has called one http_respond_*. */
typedef bool endpoint_fn(http_request *r, api_error *e);

typedef struct endpoint {
    const char *method, *path;
    bool is_prefix;    /* also what is below the path */
    bool is_open;      /* needs no key */
    bool needs_engine; /* 503 until the model is open */
    endpoint_fn *handle;
} endpoint;
extern const endpoint endpoints[]; /* ends with a NULL method */

struct http_request {
    server *server;
    struct MHD_Connection *connection;
    const endpoint *endpoint;
    const char *allow; /* another method than the path's was used: this is it */
    char method[16], path[256];
    strbuf body;
    json_t *json;    /* of the body, in a POST */
    api_error error; /* found before the body was read, if status is set */
    int64_t start_ns;
    int status;   /* sent; 0 = none */
    reply *reply; /* if the engine has to do with it */
    bool responded;
    enum MHD_Result result; /* of queueing the response */
};

/* Takes over the text. */
void http_respond_text(http_request *r, int status, const char *content_type, strbuf *text);
void http_respond_json(http_request *r, int status, strbuf *text);
/* Hands r->reply's answer over, streamed or whole, waiting for the latter. */
void http_respond_reply(http_request *r);

/* Starts answering on s->listen_fd. */
calla_status http_start(server *s, calla_error *err);

#endif
