#include "server/raw.h"

#include "base/strbuf.h"
#include "server/client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- bytes ---- */

static int connect_to(const server *s, int receive_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)server_port(s))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_bytes > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

int raw_connect(const server *s)
{
    return connect_to(s, 0);
}

bool raw_send(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);
        if (k < 0) return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

/* Up to n bytes, as soon as there are any; 0 when the server has closed. */
static size_t receive(int fd, char *data, size_t n)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_S * 1000) != 1) fail_msg("the server neither answers nor closes");
    ssize_t k = recv(fd, data, n, 0);
    return k > 0 ? (size_t)k : 0;
}

size_t raw_rest(int fd)
{
    char buffer[4096];
    size_t n = 0, k;
    while ((k = receive(fd, buffer, sizeof buffer)) > 0) n += k;
    return n;
}

/* ---- answers ---- */

static bool take(int fd, strbuf *all, size_t n)
{
    char buffer[4096];
    while (n > 0) {
        size_t k = receive(fd, buffer, n < sizeof buffer ? n : sizeof buffer);
        if (k == 0) return false;
        strbuf_append(all, buffer, k);
        n -= k;
    }
    return true;
}

static bool ends_head(const strbuf *all)
{
    return all->n >= 4 && memcmp(all->data + all->n - 4, "\r\n\r\n", 4) == 0;
}

char *raw_answer(int fd, bool has_body)
{
    strbuf all = {0};
    char *text;
    size_t n_text;
    while (!ends_head(&all) && take(fd, &all, 1)) {}
    strbuf_append(&all, "", 0);
    const char *length = all.data ? strcasestr(all.data, "\r\nContent-Length:") : NULL;
    if (length && has_body) take(fd, &all, (size_t)atol(length + 17));
    assert_int_equal(strbuf_take(&all, &text, &n_text, NULL), CALLA_OK);
    return text;
}

int raw_status(const char *answer)
{
    int status;
    return sscanf(answer, "HTTP/1.1 %d ", &status) == 1 ? status : 0;
}

/* ---- requests ---- */

static int post(int fd, const char *path, const char *body)
{
    char head[512];
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     path, strlen(body));
    assert_true(raw_send(fd, head, (size_t)n) && raw_send(fd, body, strlen(body)));
    return fd;
}

int raw_post(const server *s, const char *path, const char *body)
{
    return post(raw_connect(s), path, body);
}

int raw_occupy(const server *s, int n)
{
    json_t *body = endless_chat(s, 1000000, true);
    json_t *more = json_pack("{s:i, s:b, s:i, s:b}", "n", n, "logprobs", 1, "top_logprobs", 20,
                             "enable_thinking", 0);
    json_object_update(body, more);
    json_decref(more);
    char *text = json_dumps(body, 0);
    json_decref(body);
    int fd = post(connect_to(s, 4096), "/v1/chat/completions", text);
    free(text);
    client_wait_for(s, "calla_choices_running", n);
    return fd;
}
