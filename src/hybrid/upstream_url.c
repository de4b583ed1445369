#include "hybrid/upstream_url.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A part of the URL, or NULL; malloc'ed. */
static char *part(CURLU *u, CURLUPart what)
{
    char *text = NULL, *copy = NULL;
    if (curl_url_get(u, what, &text, 0) == CURLUE_OK && text) copy = strdup(text);
    curl_free(text);
    return copy;
}

static bool has_part(CURLU *u, CURLUPart what)
{
    char *text = part(u, what);
    free(text);
    return text != NULL;
}

static bool is_this_machine(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    char name[64];
    if (strcasecmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    size_t n = strlen(host);
    if (host[0] != '[' || n < 3 || n >= sizeof name) return false;
    memcpy(name, host + 1, n - 2);
    name[n - 2] = '\0';
    return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static calla_status check_parts(CURLU *u, const char *scheme, const char *host, calla_error *err)
{
    if (has_part(u, CURLUPART_USER) || has_part(u, CURLUPART_PASSWORD))
        return error_set(err, CALLA_ERR_INPUT,
                         "the cloud's URL must not hold a name or password; the key comes from the "
                         "environment");
    if (has_part(u, CURLUPART_QUERY) || has_part(u, CURLUPART_FRAGMENT))
        return error_set(err, CALLA_ERR_INPUT, "the cloud's URL must not have a query or fragment");
    if (strcmp(scheme, "https") == 0) return CALLA_OK;
    if (strcmp(scheme, "http") != 0)
        return error_set(err, CALLA_ERR_INPUT, "the cloud's URL is of the kind '%s', not https",
                         scheme);
    if (!is_this_machine(host))
        return error_set(err, CALLA_ERR_INPUT,
                         "the cloud's URL is http to '%s': beyond this machine it must be https",
                         host);
    return CALLA_OK;
}

static calla_status join(const char *scheme, const char *host, const char *port, const char *path,
                         char **text, calla_error *err)
{
    size_t n_path = strlen(path);
    while (n_path > 0 && path[n_path - 1] == '/') n_path--;
    if (asprintf(text, "%s://%s%s%s%.*s", scheme, host, port ? ":" : "", port ? port : "",
                 (int)n_path, path) >= 0)
        return CALLA_OK;
    *text = NULL;
    return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's URL");
}

calla_status upstream_url_check(const char *url, char **base, char **origin, calla_error *err)
{
    calla_status status = CALLA_OK;
    *base = *origin = NULL;
    CURLU *u = curl_url();
    if (!u) return error_set(err, CALLA_ERR_MEMORY, "no memory for the cloud's URL");
    char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL;
    if (curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK) {
        status = error_set(err, CALLA_ERR_INPUT,
                           "the cloud's URL is no URL; https://HOST/v1 is what one looks like");
        goto done;
    }
    scheme = part(u, CURLUPART_SCHEME);
    host = part(u, CURLUPART_HOST);
    port = part(u, CURLUPART_PORT);
    path = part(u, CURLUPART_PATH);
    if (!scheme || !host || !path) {
        status = error_set(err, CALLA_ERR_INPUT, "the cloud's URL names no host");
        goto done;
    }
    CALLA_TRY_GOTO(check_parts(u, scheme, host, err), done);
    CALLA_TRY_GOTO(join(scheme, host, port, "", origin, err), done);
    CALLA_TRY_GOTO(join(scheme, host, port, path, base, err), done);
done:
    if (status != CALLA_OK) {
        free(*origin);
        *origin = NULL;
    }
    free(scheme);
    free(host);
    free(port);
    free(path);
    curl_url_cleanup(u);
    return status;
}
