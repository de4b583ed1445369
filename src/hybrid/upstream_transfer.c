#include "base/clock.h"
#include "hybrid/upstream_private.h"

#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 64 << 10, /* of an answer */
    LONGEST_POLL_MS = 60000,
};
#define FIRST_WAIT_NS   ((int64_t)250 * 1000000) /* before the second try; doubles */
#define LONGEST_WAIT_NS ((int64_t)30 * 1000000000)

/* ---- what a transfer says ---- */

static void wake(upstream_call *c)
{
    uint64_t one = 1;
    ssize_t n = write(c->wake_fd, &one, sizeof one);
    (void)n; /* a counter that is full wakes as well */
}

static size_t on_head(char *data, size_t size, size_t n, void *user)
{
    upstream_call *c = user;
    (void)data;
    c->n_head += size * n;
    c->last_ns = clock_ns();
    c->has_begun = true;
    if (c->n_head <= HEAD_BYTES) return size * n;
    c->too_large = true;
    return 0;
}

static void begin_answer(upstream_call *c, long http_status)
{
    const char *type = NULL;
    static const char events[] = "text/event-stream";
    curl_easy_getinfo(c->easy, CURLINFO_CONTENT_TYPE, &type);
    c->status.http_status = (int)http_status;
    c->status.is_stream = type && strncasecmp(type, events, sizeof events - 1) == 0;
    c->status.phase = UPSTREAM_ANSWERING;
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    upstream_call *c = user;
    size_t n_bytes = size * n;
    long http_status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &http_status);
    bool is_answer = http_status / 100 == 2;
    c->last_ns = clock_ns();
    if (c->n_answer + n_bytes > (uint64_t)c->limits.response_bytes) {
        c->too_large = true;
        return 0;
    }
    pthread_mutex_lock(&c->owner->lock);
    if (is_answer && c->held.n >= UPSTREAM_HELD_BYTES) {
        c->paused = true;
        n_bytes = CURL_WRITEFUNC_PAUSE;
    } else {
        c->n_answer += n_bytes;
        if (is_answer && c->status.phase == UPSTREAM_WAITING) begin_answer(c, http_status);
        if (is_answer || c->held.n + n_bytes <= UPSTREAM_ERROR_BYTES)
            strbuf_append(&c->held, data, n_bytes);
        if (is_answer) wake(c);
    }
    pthread_mutex_unlock(&c->owner->lock);
    return n_bytes;
}

static void set_options(upstream_call *c)
{
    const upstream *u = c->owner;
    CURL *e = c->easy;
    curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    /* Names are looked up by a thread of libcurl's. Who gives up on a name server that is silent
     * does not wait for it: there are other transfers. */
    curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(e, CURLOPT_URL, c->url);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "https,http");
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(e, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2); /* or newer */
    if (u->ca_file) curl_easy_setopt(e, CURLOPT_CAINFO, u->ca_file);
    /* A proxy of the environment sees what goes over plain http. */
    if (strncmp(u->url, "http:", 5) == 0) curl_easy_setopt(e, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, u->headers);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "calla");
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->n_body);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, c->body);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)c->limits.connect_ms);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_head);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
}

/* ---- tries and ends ---- */

static void count_bytes(upstream_call *c)
{
    curl_off_t uploaded = 0;
    long head = 0;
    if (!c->easy) return;
    curl_easy_getinfo(c->easy, CURLINFO_REQUEST_SIZE, &head);
    curl_easy_getinfo(c->easy, CURLINFO_SIZE_UPLOAD_T, &uploaded);
    c->status.bytes_sent = c->ended_sent + head + uploaded;
    c->status.bytes_received = c->ended_received + (int64_t)(c->n_head + c->n_answer);
}

/* The try is no more; under the lock. */
static void drop_try(upstream_call *c)
{
    if (!c->easy) return;
    count_bytes(c);
    c->ended_sent = c->status.bytes_sent;
    c->ended_received = c->status.bytes_received;
    curl_multi_remove_handle(c->owner->multi, c->easy);
    curl_easy_cleanup(c->easy);
    c->easy = NULL;
    c->paused = c->resume = false;
}

/* The call is its caller's; message NULL: it went well. */
static void end_call(upstream_call *c, upstream_failure failure, const char *message)
{
    upstream *u = c->owner;
    pthread_mutex_lock(&u->lock);
    drop_try(c);
    upstream_status *s = &c->status;
    s->phase = message ? UPSTREAM_FAILED : UPSTREAM_DONE;
    s->failure = failure;
    snprintf(s->message, sizeof s->message, "%s", message ? message : "");
    for (upstream_call **at = &u->calls; *at; at = &(*at)->next) {
        if (*at != c) continue;
        *at = c->next;
        u->n_calls--;
        break;
    }
    c->over = true;
    wake(c); /* under the lock: who sees `over` frees the call */
    pthread_cond_broadcast(&u->ended);
    pthread_mutex_unlock(&u->lock);
}

static void begin_try(upstream_call *c)
{
    pthread_mutex_lock(&c->owner->lock);
    strbuf_clear(&c->held); /* what an earlier try's error said */
    c->status.n_tries++;
    c->status.http_status = 0;
    c->status.retry_after_s = 0;
    pthread_mutex_unlock(&c->owner->lock);
    c->n_head = c->n_answer = 0;
    c->too_large = c->has_begun = false;
    c->try_ns = c->last_ns = clock_ns();
    c->easy = curl_easy_init();
    if (c->easy) set_options(c);
    if (!c->easy || curl_multi_add_handle(c->owner->multi, c->easy) != CURLM_OK) {
        curl_easy_cleanup(c->easy);
        c->easy = NULL;
        end_call(c, UPSTREAM_UNREACHED, "no memory for a request to the cloud");
    }
}

static bool is_worth_another(CURLcode code, long http_status)
{
    switch (code) {
    case CURLE_OK:
        return http_status == 429 || http_status == 500 ||
               (http_status >= 502 && http_status <= 504);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT: /* of the connection: the others are not curl's */
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

/* Up to a quarter more, so that those who failed together do not come back together. */
static int64_t back_off_ns(int32_t n_tries)
{
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = 0;
    int64_t ns = FIRST_WAIT_NS << (n_tries < 6 ? n_tries - 1 : 5);
    return ns + ns / 4 * (random % 1024) / 1024;
}

/* Whether there is another try, and when. */
static bool plan_another(upstream_call *c, CURLcode code, long http_status)
{
    upstream_status *s = &c->status;
    int64_t now = clock_ns(), wait_ns = back_off_ns(s->n_tries);
    if (c->too_large || s->phase != UPSTREAM_WAITING || s->n_tries > c->limits.n_retries ||
        !is_worth_another(code, http_status))
        return false;
    if (wait_ns < (int64_t)s->retry_after_s * 1000000000)
        wait_ns = (int64_t)s->retry_after_s * 1000000000;
    if (wait_ns > LONGEST_WAIT_NS || now + wait_ns > c->start_ns + c->limits.total_ms * 1000000)
        return false;
    c->due_ns = now + wait_ns;
    pthread_mutex_lock(&c->owner->lock);
    drop_try(c);
    pthread_mutex_unlock(&c->owner->lock);
    return true;
}

static void end_try(upstream_call *c, CURLcode code)
{
    long http_status = 0;
    curl_off_t retry_after = 0;
    char message[160];
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &http_status);
    curl_easy_getinfo(c->easy, CURLINFO_RETRY_AFTER, &retry_after);
    if (retry_after > 86400) retry_after = 86400;
    pthread_mutex_lock(&c->owner->lock);
    c->status.http_status = (int)http_status;
    c->status.retry_after_s = (int32_t)retry_after;
    pthread_mutex_unlock(&c->owner->lock);
    if (plan_another(c, code, http_status)) return;
    if (c->too_large) {
        end_call(c, UPSTREAM_TOO_LARGE, "the cloud's answer is larger than allowed");
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        end_call(c, UPSTREAM_SLOW, "no connection to the cloud in time");
    } else if (code != CURLE_OK) {
        snprintf(message, sizeof message, "%s: %s",
                 c->status.phase == UPSTREAM_ANSWERING ? "the cloud's answer broke off"
                                                       : "the cloud cannot be reached",
                 curl_easy_strerror(code));
        end_call(c, UPSTREAM_UNREACHED, message);
    } else if (http_status / 100 == 2) {
        end_call(c, UPSTREAM_NO_FAILURE, NULL);
    } else if (http_status / 100 == 3) {
        end_call(c, UPSTREAM_REDIRECTED,
                 "the cloud redirects elsewhere, which is not followed: check --cloud-url");
    } else {
        snprintf(message, sizeof message, "the cloud answered with status %ld", http_status);
        end_call(c, UPSTREAM_REFUSED, message);
    }
}

/* ---- the transfer thread ---- */

/* The time that has run out, or NULL; *next_ns: when one does. */
static const char *check_times(const upstream_call *c, int64_t now, bool paused, int64_t *next_ns)
{
    const upstream_limits *l = &c->limits;
    int64_t total = c->start_ns + l->total_ms * 1000000, part = INT64_MAX;
    if (c->easy && !c->has_begun) part = c->try_ns + l->first_byte_ms * 1000000;
    if (c->easy && c->has_begun && !paused) part = c->last_ns + l->idle_ms * 1000000;
    if (now >= total) return "the cloud took longer than allowed";
    if (now >= part)
        return c->has_begun ? "the cloud's answer stopped" : "the cloud did not answer in time";
    *next_ns = total < part ? total : part;
    if (!c->easy && c->due_ns < *next_ns) *next_ns = c->due_ns;
    return NULL;
}

/* Does what is due for a call and gives the time something is next, INT64_MAX = the call is over.
 */
static int64_t step(upstream_call *c, int64_t cutoff_ns)
{
    upstream *u = c->owner;
    int64_t now = clock_ns(), next_ns = INT64_MAX;
    pthread_mutex_lock(&u->lock);
    bool cancelled = c->cancelled, resume = c->resume, paused = c->paused;
    if (resume) c->resume = c->paused = false;
    pthread_mutex_unlock(&u->lock);
    if (cancelled) {
        end_call(c, UPSTREAM_STOPPED, "the request was given up");
        return INT64_MAX;
    }
    if (now >= cutoff_ns) {
        end_call(c, UPSTREAM_STOPPED, "the server is shutting down");
        return INT64_MAX;
    }
    const char *late = check_times(c, now, paused, &next_ns);
    if (late) {
        end_call(c, UPSTREAM_SLOW, late);
        return INT64_MAX;
    }
    if (!c->easy && now >= c->due_ns) {
        begin_try(c); /* the call may be over after it, and its memory gone */
        return now;
    }
    if (c->easy && resume) {
        c->last_ns = now;
        curl_easy_pause(c->easy, CURLPAUSE_CONT);
    }
    return next_ns;
}

static int64_t step_all(upstream *u, bool *finished)
{
    int64_t next_ns = INT64_MAX;
    pthread_mutex_lock(&u->lock);
    upstream_call *c = u->calls;
    int64_t cutoff_ns = u->stopping ? u->deadline_ns : INT64_MAX;
    *finished = u->closing && !c;
    pthread_mutex_unlock(&u->lock);
    while (c) {
        upstream_call *next = c->next;
        int64_t at = step(c, cutoff_ns);
        if (at < next_ns) next_ns = at;
        c = next;
    }
    return next_ns < cutoff_ns ? next_ns : cutoff_ns;
}

static void end_tries(CURLM *multi)
{
    CURLMsg *m;
    int n_left;
    while ((m = curl_multi_info_read(multi, &n_left))) {
        upstream_call *c = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        end_try(c, code);
    }
}

static int poll_ms(int64_t until_ns)
{
    int64_t ns = until_ns - clock_ns();
    if (ns <= 0) return 0;
    return ns / 1000000 >= LONGEST_POLL_MS ? LONGEST_POLL_MS : (int)(ns / 1000000) + 1;
}

void *upstream_transfers(void *user)
{
    upstream *u = user;
    for (;;) {
        bool finished;
        int n_running;
        /* First what has come: it is in time even if this thread was late to look. */
        curl_multi_perform(u->multi, &n_running);
        end_tries(u->multi);
        int64_t next_ns = step_all(u, &finished);
        if (finished) return NULL;
        curl_multi_poll(u->multi, NULL, 0, poll_ms(next_ns), NULL);
    }
}
