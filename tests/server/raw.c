#include "server/raw.h"

#include "base/strbuf.h"
#include "support/support.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 60000 };

int raw_connect(const server *s)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)server_port(s))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
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

char *raw_read(int fd, int quiet_ms, bool *closed)
{
    strbuf all = {0};
    char buffer[4096], *text;
    size_t n_text;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    *closed = false;
    while (poll(&p, 1, all.n > 0 ? quiet_ms : PATIENCE_MS) > 0) {
        ssize_t k = recv(fd, buffer, sizeof buffer, 0);
        if (k <= 0) {
            *closed = true;
            break;
        }
        strbuf_append(&all, buffer, (size_t)k);
    }
    assert_int_equal(strbuf_take(&all, &text, &n_text, NULL), CALLA_OK);
    return text;
}

int raw_status(const char *answer)
{
    int status;
    return sscanf(answer, "HTTP/1.1 %d ", &status) == 1 ? status : 0;
}
