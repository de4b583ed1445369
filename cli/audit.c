/* calla audit: what left for the cloud, and what was kept from leaving. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] = "usage: calla audit [OPTIONS]\n"
                            "\n"
                            "Lists what `calla serve` and `calla run` sent to a cloud and what "
                            "they kept from it, or checks\n"
                            "that nobody has changed the file since.\n";

static const char notes[] =
    "--verify tells a row that was changed, taken out or moved. Rows missing at the end it can "
    "tell\n"
    "only with --expect: note now and then what --verify prints, in another place.\n";

typedef struct audit_args {
    const char *file, *since, *category, *result, *expect;
    char *default_file;
    bool json, verify;
    /* The rows so far, NULL = printed as they come. */
    json_t *intents; /* {"NUMBER": entry}: those whose outcome may follow */
    int64_t since_ms;
    bool any, failed;
} audit_args;

/* ---- options ---- */

static int parse_options(int argc, char **argv, audit_args *a)
{
    const cli_option own[] = {
        {0, "audit", "FILE", cli_text(&a->file), "the file [~/.local/state/calla/audit.db]"},
        {0, "json", NULL, cli_true(&a->json), "one JSON object a line, with everything there is"},
        {0, "since", "TIME", cli_text(&a->since),
         "from this time on, as 2026-01-31 or 2026-01-31T12:00:00 (UTC)"},
        {0, "category", "NAME", cli_text(&a->category),
         "only requests in which this was found, as email"},
        {0, "result", "NAME", cli_text(&a->result),
         "only those that ended so: answered, failed, given_up, not_sent, unknown; local, asked, "
         "refused"},
        {0, "verify", NULL, cli_true(&a->verify), "check the file, and print its last row's mark"},
        {0, "expect", "MARK", cli_text(&a->expect),
         "with --verify: the file must have the row of this mark, as --verify printed it"},
    };
    const cli_syntax syntax = {.usage = usage, .notes = notes, .groups = {CLI_GROUP(NULL, own)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    if (code >= 0) return code;
    if (a->expect && !a->verify) return cli_usage_error("--expect goes with --verify");
    if (a->verify && (a->json || a->since || a->category || a->result))
        return cli_usage_error("--verify checks the whole file and lists nothing");
    return -1;
}

/* False after a usage error. */
static bool read_since(audit_args *a)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"};
    a->since_ms = INT64_MIN;
    if (!a->since) return true;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct tm t = {0};
        const char *end = strptime(a->since, forms[i], &t);
        if (!end || (*end && strcmp(end, "Z") != 0)) continue;
        a->since_ms = (int64_t)timegm(&t) * 1000;
        return true;
    }
    cli_usage_error("--since: '%s' is no time like 2026-01-31T12:00:00", a->since);
    return false;
}

/* ---- entries ---- */

static void set_time(json_t *entry, int64_t time_ms)
{
    char text[40];
    struct tm t;
    time_t seconds = (time_t)(time_ms / 1000);
    gmtime_r(&seconds, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
    json_object_set_new(entry, "time", json_string(text));
}

static const char *text_of(const json_t *entry, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(entry, key));
    return text ? text : otherwise;
}

/* "2 email, 1 phone" */
static void put_findings(const json_t *entry, char *text, size_t n)
{
    json_t *findings = json_object_get(entry, "findings");
    size_t used = 0;
    *text = '\0';
    for (void *i = json_object_iter(findings); i; i = json_object_iter_next(findings, i)) {
        used += (size_t)snprintf(text + used, n - used, "%s%lld %s", used ? ", " : "",
                                 (long long)json_integer_value(json_object_iter_value(i)),
                                 json_object_iter_key(i));
        if (used >= n) break;
    }
}

static bool is_wanted(const audit_args *a, const json_t *entry)
{
    if (a->category && !json_object_get(json_object_get(entry, "findings"), a->category))
        return false;
    return !a->result || strcmp(text_of(entry, "result", ""), a->result) == 0;
}

static void print_entry(audit_args *a, const json_t *entry)
{
    char findings[128], line[512];
    if (!is_wanted(a, entry) || a->failed) return;
    if (a->json) {
        char *text = json_dumps(entry, JSON_COMPACT | JSON_SORT_KEYS);
        a->failed = !text || !cli_write(text, strlen(text)) || !cli_write("\n", 1);
        free(text);
        return;
    }
    put_findings(entry, findings, sizeof findings);
    int n = snprintf(
        line, sizeof line, "%6lld  %s  %-9s %-10s %10lld  %s%s%s%s\n",
        (long long)json_integer_value(json_object_get(entry, "number")), text_of(entry, "time", ""),
        text_of(entry, "result", ""), text_of(entry, "action", ""),
        (long long)json_integer_value(json_object_get(entry, "bytes_sent")),
        json_object_get(entry, "route") ? "-" : text_of(entry, "destination", ""),
        *findings ? "  " : "", findings, json_object_get(entry, "consent") ? "  (agreed to)" : "");
    if (!a->any) {
        static const char head[] = "number  time                  result    action           "
                                   "bytes  destination, findings\n";
        a->failed = !cli_write(head, sizeof head - 1);
    }
    a->any = true;
    if (n > 0 && !a->failed)
        a->failed = !cli_write(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* A request that was sent is printed when its outcome is there, or at the end without one. */
static bool take_row(void *user, const audit_row *row)
{
    audit_args *a = user;
    char key[24];
    json_t *entry = json_loads(row->body, 0, NULL);
    if (!entry) entry = json_object();
    if (row->kind == AUDIT_OUTCOME) {
        snprintf(key, sizeof key, "%lld", (long long)row->reference);
        json_t *intent = json_object_get(a->intents, key);
        if (intent) {
            json_object_update(intent, entry);
            print_entry(a, intent);
            json_object_del(a->intents, key);
        }
    } else if (row->time_ms >= a->since_ms) {
        snprintf(key, sizeof key, "%lld", (long long)row->number);
        json_object_set_new(entry, "number", json_integer(row->number));
        set_time(entry, row->time_ms);
        if (row->kind == AUDIT_INTENT) {
            json_object_set_new(entry, "result", json_string("unknown"));
            json_object_set(a->intents, key, entry);
        } else {
            json_object_set(entry, "result", json_object_get(entry, "route"));
            print_entry(a, entry);
        }
    }
    json_decref(entry);
    return !a->failed;
}

static calla_status list(audit *file, audit_args *a, calla_error *err)
{
    a->intents = json_object();
    calla_status status = audit_read(file, 1, take_row, a, err);
    for (void *i = json_object_iter(a->intents); status == CALLA_OK && i;
         i = json_object_iter_next(a->intents, i))
        print_entry(a, json_object_iter_value(i));
    json_decref(a->intents);
    return status;
}

/* ---- checking ---- */

/* "NUMBER:HASH" */
static bool read_mark(const char *text, audit_mark *mark)
{
    unsigned char digest[SHA256_BYTES];
    char *end;
    mark->number = strtoll(text, &end, 10);
    if (end == text || *end != ':' || mark->number < 0) return false;
    snprintf(mark->hash, sizeof mark->hash, "%s", end + 1);
    return mark->number == 0 || hex_read(end + 1, digest, sizeof digest);
}

static calla_status verify(audit *file, const audit_args *a, calla_error *err)
{
    audit_mark expected, mark;
    char line[128];
    if (a->expect && !read_mark(a->expect, &expected))
        return error_set(err, CALLA_ERR_INPUT, "--expect: '%s' is no mark that --verify prints",
                         a->expect);
    calla_status status = audit_verify(file, a->expect ? &expected : NULL, &mark, err);
    if (status != CALLA_OK) return status;
    int n = snprintf(line, sizeof line, "%lld:%s\n", (long long)mark.number, mark.hash);
    cli_write(line, (size_t)n);
    return CALLA_OK;
}

int cmd_audit(int argc, char **argv)
{
    audit_args a = {0};
    audit *file = NULL;
    calla_error err;
    int code = parse_options(argc, argv, &a);
    if (code >= 0) return code;
    if (!read_since(&a)) return EXIT_USAGE;
    calla_status status = a.file ? CALLA_OK : hybrid_default_audit(&a.default_file, &err);
    if (status == CALLA_OK)
        status = audit_open_to_read(a.file ? a.file : a.default_file, &file, &err);
    if (status == CALLA_OK) status = a.verify ? verify(file, &a, &err) : list(file, &a, &err);
    audit_close(file);
    free(a.default_file);
    return status == CALLA_OK ? EXIT_OK : cli_fail(&err);
}
