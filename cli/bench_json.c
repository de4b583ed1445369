/* calla bench as JSON. */
#include "bench.h"

#include <jansson.h>
#include <time.h>

static json_t *text_json(const char *text)
{
    json_t *value = json_string(text); /* a path may be anything, also not UTF-8 */
    return value ? value : json_null();
}

/* null: nothing was measured. */
static json_t *digest_json(uint64_t digest)
{
    if (digest == 0) return json_null();
    return json_sprintf("%016llx", (unsigned long long)digest);
}

static json_t *profile_json(const bench_profile *p)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < p->n_entries; i++) {
        const calla_profile_entry *e = &p->entries[i];
        double n = p->n_profiled;
        if (e->n_calls == 0) continue;
        json_array_append_new(
            list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "name", e->name, "seconds",
                            (double)e->ns * 1e-9 / n, "calls", (double)e->n_calls / n, "levels",
                            (double)e->n_levels / n, "bytes", (double)e->bytes / n, "operations",
                            (double)e->operations / n));
    }
    return list;
}

/* What both kinds have. */
static json_t *point_json(const bench_report *r, const bench_point *p)
{
    json_t *o =
        json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:o}", "sequences", (int)p->n_sequences,
                  "runs", (int)p->n_runs, "tokens_per_second", p->tokens_per_second, "slowest",
                  p->slowest, "fastest", p->fastest, "major_faults_per_token",
                  (double)p->reads.major_faults / (double)p->n_tokens, "disk_bytes_per_token",
                  (double)p->reads.bytes / (double)p->n_tokens, "digest", digest_json(p->digest));
    if (r->args->profile) json_object_set_new(o, "profile", profile_json(&p->profile));
    return o;
}

static void add_skipped(json_t *skipped, const char *kind, const bench_point *p)
{
    json_array_append_new(skipped,
                          json_pack("{s:s, s:i, s:i, s:s}", "kind", kind, "tokens", (int)p->tokens,
                                    "sequences", (int)p->n_sequences, "why", p->skipped));
}

static void add_points(const bench_report *r, json_t *o)
{
    json_t *prefill = json_array(), *decode = json_array(), *skipped = json_array();
    for (int32_t i = 0; i < r->n_prefill; i++) {
        const bench_point *p = &r->prefill[i];
        if (bench_is_skipped(p)) {
            add_skipped(skipped, "prefill", p);
            continue;
        }
        json_t *point = point_json(r, p);
        json_object_set_new(point, "tokens", json_integer(p->tokens));
        json_object_set_new(point, "operations_per_second", json_real(p->rate));
        json_object_set_new(point, "fraction_of_matrix_rate", json_real(p->fraction));
        json_array_append_new(prefill, point);
    }
    for (int32_t i = 0; i < r->n_decode; i++) {
        const bench_point *p = &r->decode[i];
        if (bench_is_skipped(p)) {
            add_skipped(skipped, "decode", p);
            continue;
        }
        json_t *point = point_json(r, p);
        json_object_set_new(point, "context", json_integer(p->tokens));
        json_object_set_new(point, "steps", json_integer(r->args->n_steps));
        json_object_set_new(point, "bytes_per_second", json_real(p->rate));
        json_object_set_new(point, "fraction_of_read_bandwidth", json_real(p->fraction));
        json_array_append_new(decode, point);
    }
    json_object_set_new(o, "prefill", prefill);
    json_object_set_new(o, "decode", decode);
    json_object_set_new(o, "skipped", skipped);
}

static json_t *date_json(void)
{
    char text[32];
    time_t t = time(NULL);
    struct tm utc;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    return json_string(text);
}

char *bench_report_json(const bench_report *r)
{
    const bench_args *args = r->args;
    const calla_engine_info *e = &r->engine;
    json_t *o = json_pack(
        "{s:s, s:o, s:o, s:b, s:s, s:s, s:i, s:i, s:o}", "version", calla_version(), "date",
        date_json(), "model", text_json(args->synth ? args->synth : args->engine.model),
        "synthetic", args->synth != NULL, "backend", e->backend, "isa", e->isa, "threads",
        (int)e->n_threads, "n_ctx", (int)e->n_ctx, "cpu", text_json(r->machine.cpu));
    if (!o) return NULL;
    if (args->synth) json_object_set_new(o, "seed", json_integer(args->seed));
    json_object_set_new(o, "read_bytes_per_second", json_real(r->rates.read_bytes_per_second));
    json_object_set_new(o, "matrix_operations_per_second",
                        json_real(r->rates.matrix_operations_per_second));
    add_points(r, o);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"weights_bytes", e->memory.weights_bytes},
        {"other_bytes", e->memory.total_bytes - e->memory.weights_bytes},
        {"peak_resident_bytes", r->peak_resident_bytes},
        {"anonymous_bytes", r->anonymous_bytes},
        {"major_faults", r->reads.major_faults},
        {"disk_bytes", r->reads.bytes},
        {"token_weight_bytes", e->token_weight_bytes},
        {"state_bytes", e->state_bytes},
        {"kv_bytes_per_token", e->kv_bytes_per_token},
        {"token_operations", e->token_operations},
        {"attention_operations", e->attention_operations},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(o, numbers[i].name, json_integer(numbers[i].value));
    json_object_set_new(o, "load_seconds", json_real((double)e->load_ns * 1e-9));
    json_object_set_new(o, "digest", digest_json(r->digest));
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(o);
    return text;
}
