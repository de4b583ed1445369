/* What can be said of a request before its body is read. */
#include "server/http.h"

#include <stdlib.h>
#include <string.h>

const char *http_header(const http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* ---- headers ---- */

/* Headers that decide something: were one there twice, readers could disagree on which counts. */
static const char *const single_headers[] = {MHD_HTTP_HEADER_HOST,
                                             MHD_HTTP_HEADER_ORIGIN,
                                             MHD_HTTP_HEADER_CONTENT_LENGTH,
                                             MHD_HTTP_HEADER_AUTHORIZATION,
                                             MHD_HTTP_HEADER_CONTENT_TYPE,
                                             MHD_HTTP_HEADER_TRANSFER_ENCODING,
                                             MHD_HTTP_HEADER_EXPECT,
                                             MHD_HTTP_HEADER_CONTENT_ENCODING,
                                             "x-api-key",
                                             "Idempotency-Key"};
enum { N_SINGLE_HEADERS = sizeof single_headers / sizeof *single_headers };

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    int *counts = user; /* [N_SINGLE_HEADERS] */
    (void)kind, (void)value;
    for (size_t i = 0; i < N_SINGLE_HEADERS; i++)
        counts[i] += strcasecmp(name, single_headers[i]) == 0;
    return MHD_YES;
}

static bool check_headers(const http_request *r, api_error *e)
{
    int counts[N_SINGLE_HEADERS] = {0};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_header, counts);
    for (size_t i = 0; i < N_SINGLE_HEADERS; i++)
        if (counts[i] > 1)
            return api_fail(e, 400, NULL, "invalid_header", "the header %s is there %d times",
                            single_headers[i], counts[i]);
    return true;
}

/* How the body comes. */
static bool check_framing(const http_request *r, api_error *e)
{
    const char *transfer = http_header(r, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    const char *encoding = http_header(r, MHD_HTTP_HEADER_CONTENT_ENCODING);
    const char *length = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *expect = http_header(r, MHD_HTTP_HEADER_EXPECT);
    int64_t most = r->server->options.max_body_bytes;
    if (transfer && strcasecmp(transfer, "chunked") != 0)
        return api_fail(e, 501, NULL, "unsupported_transfer_encoding",
                        "Transfer-Encoding can only be chunked");
    if (transfer && length)
        return api_fail(e, 400, NULL, "invalid_header",
                        "Content-Length and Transfer-Encoding exclude each other");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return api_fail(e, 417, NULL, "expectation_failed", "Expect can only be 100-continue");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return api_fail(e, 415, NULL, "unsupported_content_encoding",
                        "bodies cannot be compressed (Content-Encoding)");
    if (length && strtoull(length, NULL, 10) > (uint64_t)most)
        return api_fail(e, 413, NULL, "request_too_large", "the request is larger than %lld bytes",
                        (long long)most);
    return true;
}

static bool check_content_type(const http_request *r, api_error *e)
{
    static const char json[] = "application/json";
    const char *type = http_header(r, MHD_HTTP_HEADER_CONTENT_TYPE);
    /* Anything else a page could send without asking. */
    if (strcmp(r->endpoint->method, "POST") == 0 &&
        (!type || strncasecmp(type, json, sizeof json - 1) != 0 ||
         !strchr("; \t", type[sizeof json - 1])))
        return api_fail(e, 415, NULL, "unsupported_media_type",
                        "the Content-Type must be application/json");
    return true;
}

/* ---- target ---- */

/* Takes scheme and authority off a target in absolute form, and checks the latter as a Host. */
static bool take_target(http_request *r, const char *target, api_error *e)
{
    static const char scheme[] = "http://";
    if (strncasecmp(target, scheme, sizeof scheme - 1) == 0) {
        char host[256];
        target += sizeof scheme - 1;
        size_t n = strcspn(target, "/");
        snprintf(host, sizeof host, "%.*s", n < sizeof host ? (int)n : 0, target);
        if (!access_check_host(&r->server->access, host, e)) return false;
        target = target[n] ? target + n : "/";
    }
    if (snprintf(r->path, sizeof r->path, "%s", target) >= (int)sizeof r->path)
        return api_fail(e, 404, NULL, "unknown_url", "the URL is too long");
    return true;
}

static bool matches(const endpoint *p, const char *path)
{
    size_t n = strlen(p->path);
    if (strncmp(path, p->path, n) != 0) return false;
    return path[n] == '\0' || (p->is_prefix && path[n] == '/' && path[n + 1] != '\0');
}

/* The endpoint for path and method. HEAD is a GET whose body libmicrohttpd leaves out. */
static bool find_endpoint(http_request *r, api_error *e)
{
    const endpoint *other = NULL;
    char allow[sizeof r->allow] = "";
    const char *method = strcmp(r->method, "HEAD") == 0 ? "GET" : r->method;
    for (const endpoint *p = endpoints; p->method; p++) {
        if (!matches(p, r->path)) continue;
        if (strcmp(p->method, method) == 0) r->endpoint = p;
        other = p;
        size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "", p->method);
    }
    if (r->endpoint) return true;
    if (other) {
        memcpy(r->allow, allow, sizeof allow);
        return api_fail(e, 405, NULL, "method_not_allowed", "%s is for %s requests", other->path,
                        allow);
    }
    return api_fail(e, 404, NULL, "unknown_url", "Invalid URL (%s %s)", r->method, r->path);
}

/* ---- all of it ---- */

static bool check_state(server *s, api_error *e)
{
    switch (server_get_state(s)) {
    case SERVER_OK:
        return true;
    case SERVER_LOADING:
        api_fail(e, 503, NULL, "loading", "the model is being loaded");
        e->retry_after_s = 2;
        return false;
    case SERVER_FAILED:
        return api_fail(e, 503, NULL, "failed", "%s", s->error.message);
    default:
        api_fail(e, 503, NULL, "shutting_down", "the server is shutting down");
        e->retry_after_s = 5;
        return false;
    }
}

bool http_check_head(http_request *r, const char *target, api_error *e)
{
    const access_rules *a = &r->server->access;
    const char *host = http_header(r, "Host"), *origin = http_header(r, "Origin");
    r->unread = true; /* the body, when what follows fails: it has no end to rely on */
    if (!check_headers(r, e) || !check_framing(r, e)) return false;
    /* Who waits to be asked for the body need not send it when the answer is no. */
    r->unread = http_header(r, MHD_HTTP_HEADER_EXPECT) != NULL;
    if (!access_check_host(a, host, e) || !access_check_origin(a, origin, host, e) ||
        !take_target(r, target, e))
        return false;
    if (strcmp(r->method, "OPTIONS") == 0 && origin && access_origin_is_configured(a, origin))
        return true; /* a preflight carries no key */
    if (!find_endpoint(r, e)) return false;
    if (!r->endpoint->is_open &&
        !access_check_key(a, http_header(r, "Authorization"), http_header(r, "x-api-key"), e))
        return false;
    return check_content_type(r, e) && (!r->endpoint->needs_engine || check_state(r->server, e));
}
