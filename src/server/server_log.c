#include "server/server_log.h"

#include "base/json.h"

#include <string.h>
#include <time.h>

static void put_time(strbuf *line)
{
    struct timespec now;
    struct tm utc;
    char text[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    strbuf_printf(line, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

/* Numbers with as many digits as are of use. */
static void put_value(strbuf *line, const json_t *value, bool quote)
{
    const char *text = json_string_value(value);
    if (json_is_real(value))
        strbuf_printf(line, "%.6g", json_real_value(value));
    else if (text && !quote && *text && !strpbrk(text, " \"\\=\n\r\t"))
        strbuf_puts(line, text);
    else
        json_write_value(line, value);
}

void server_log_put(const server_log *log, const char *event, json_t *fields)
{
    strbuf line = {0};
    if (!log->file || !fields) {
        json_decref(fields);
        return;
    }
    strbuf_puts(&line, log->json ? "{\"time\": \"" : "");
    put_time(&line);
    strbuf_printf(&line, log->json ? "\", \"event\": \"%s\"" : " %s", event);
    for (void *i = json_object_iter(fields); i; i = json_object_iter_next(fields, i)) {
        strbuf_printf(&line, log->json ? ", \"%s\": " : " %s=", json_object_iter_key(i));
        put_value(&line, json_object_iter_value(i), log->json);
    }
    strbuf_puts(&line, log->json ? "}\n" : "\n");
    if (!line.failed) fwrite(line.data, 1, line.n, log->file); /* one call: lines do not mix */
    fflush(log->file);
    strbuf_free(&line);
    json_decref(fields);
}

json_t *server_log_text(const char *bytes, size_t n_bytes)
{
    strbuf text = {0};
    json_t *value = json_stringn(bytes, n_bytes);
    if (value) return value;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)bytes[i];
        strbuf_printf(&text, c < 0x80 ? "%c" : "<%02x>", c);
    }
    if (!text.failed) value = json_stringn(text.data, text.n);
    strbuf_free(&text);
    return value;
}
