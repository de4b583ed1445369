/* HTTP on libmicrohttpd: one thread a connection. Endpoints get requests whose sender may use the
 * server and whose body is whole, and answer with http_respond_*. */
#ifndef CALLA_SERVER_HTTP_H
#define CALLA_SERVER_HTTP_H

#include "server/context.h"
#include "server/reply.h"

typedef struct http_request http_request;
typedef struct cloud_answer cloud_answer;
typedef struct task_stream task_stream;

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

/* What became of waiting for more of a stream. */
typedef enum http_more {
    HTTP_MORE,  /* look at what there is to send, if anything, and wait on */
    HTTP_ENDED, /* nothing follows */
    HTTP_BROKEN /* the client has gone, or there is nothing right to send */
} http_more;

/* A stream of events. `more` puts into *out, which is empty, what comes until `until_ns`
 * (clock_ns()), or tells that nothing follows; what it puts is sent before it is asked again. */
typedef struct http_stream {
    strbuf *out;
    http_more (*more)(http_request *r, int64_t until_ns);
    size_t n_sent; /* of *out */
    int64_t last_write_ns;
} http_stream;

struct http_request {
    server *server;
    struct MHD_Connection *connection;
    const endpoint *endpoint;
    char allow[32]; /* another method than the path's was used: these are they; else "" */
    char method[16], path[256];
    strbuf body;
    json_t *json;    /* of the body, in a POST */
    api_error error; /* found before the body was read, if status is set */
    int64_t start_ns;
    int64_t n_reserved; /* of metrics.gauges.request_bytes */
    bool closes;        /* an error ends the connection */
    bool unread;        /* an error is answered without reading the body, and ends the connection */
    int status;         /* sent; 0 = none */
    reply *reply;       /* if the engine has to do with it */
    cloud_answer *cloud; /* if the cloud has, see cloud.h */
    task_stream *events; /* of a task, see tasks.h */
    const char *route;   /* for the header X-Calla-Route, static; or NULL */
    char *note;          /* JSON: what the answer says under "calla"; or NULL */
    http_stream stream;  /* with http_respond_stream */
    bool responded;
    enum MHD_Result result; /* of queueing the response */
};

/* A header's value, or NULL. */
const char *http_header(const http_request *r, const char *name);
/* Checks a request's head: who may send it, what it is for. Sets r->path and r->endpoint (NULL for
 * a page's preflight). False with *e set; r->unread then says whether its body is to be read. */
bool http_check_head(http_request *r, const char *target, api_error *e);

/* Takes over the text. */
void http_respond_text(http_request *r, int status, const char *content_type, strbuf *text);
void http_respond_json(http_request *r, int status, strbuf *text);
/* Hands r->reply's answer over, streamed or whole, waiting for the latter. */
void http_respond_reply(http_request *r);
/* A stream of events: what is in *out already, then what `more` puts there; while nothing comes, a
 * comment now and then keeps the connection. *out is of something that r keeps until its end. */
void http_respond_stream(http_request *r, strbuf *out,
                         http_more (*more)(http_request *r, int64_t until_ns));
/* The client has gone. */
void http_respond_nothing(http_request *r);
/* The client's socket. */
int http_socket(const http_request *r);

/* Memory that all requests may take together. */
int64_t http_budget(const server_options *o);

/* Starts answering on s->listen_fd. */
calla_status http_start(server *s, calla_error *err);

#endif
