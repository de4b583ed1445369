/* calla info: what a checkpoint holds, what it needs, what this machine has. */
#include "info.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: calla info [-m DIR] [OPTIONS]\n"
    "\n"
    "Shows a checkpoint's shape and contents, after checking all of it, and the memory that the\n"
    "other commands would take with the same options, without loading anything; and what this\n"
    "machine has. Without -m: the machine alone.\n";

typedef struct info_args {
    cli_engine_args engine;
    bool tensors, json;
} info_args;

/* A tensor belongs to the first of these whose key is in its name. */
static const struct part_key {
    const char *key;
    int part; /* index into part_names */
    bool skipped;
} part_keys[] = {
    {"embed_tokens", 0, false},
    {"lm_head", 1, false},
    {".linear_attn.", 2, false},
    {".self_attn.", 3, false},
    {".switch_mlp.", 4, false},
    {".mlp.experts.", 4, false},
    {".mlp.gate.", 5, false},
    {".mlp.", 6, false},
    {"", 7, false},
    {"vis", 8, true},
    {"", 9, true},
};
static const char *const part_names[INFO_PARTS] = {
    "embedding",
    "output head",
    "delta-net mixers",
    "attention mixers",
    "routed experts",
    "routers",
    "shared experts",
    "norms",
    "vision tower (skipped)",
    "draft head (skipped)",
};

/* Filled while the checkpoint is open. */
typedef struct gathering {
    const info_args *args;
    info_report report;
    FILE *list;      /* lines for people, or NULL */
    json_t *tensors; /* objects for programs, or NULL */
} gathering;

/* ---- gathering ---- */

static int find_part(const calla_tensor_info *t)
{
    const struct part_key *k = part_keys;
    while (k->skipped != t->skipped || !strstr(t->name, k->key)) k++; /* "" is in every name */
    return k->part;
}

static void list_tensor(FILE *out, const calla_tensor_info *t)
{
    fprintf(out, "%-5s %12lld  ", t->dtype, (long long)t->n_bytes);
    for (const char *c = t->name; *c; c++)
        fputc((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c, out);
    for (int32_t i = 0; i < t->n_dims; i++)
        fprintf(out, i ? ", %lld" : " [%lld", (long long)t->shape[i]);
    fputs(t->n_dims ? "]" : " []", out);
    fputs(t->skipped ? "  skipped\n" : "\n", out);
}

static void take_tensor(void *user, const calla_tensor_info *t)
{
    gathering *g = user;
    struct info_part *part = &g->report.parts[find_part(t)];
    part->n_tensors++;
    part->n_bytes += t->n_bytes;
    if (g->list) list_tensor(g->list, t);
    if (g->tensors) json_array_append_new(g->tensors, info_tensor_json(t));
}

static void drop_empty_parts(info_report *r)
{
    for (int i = 0; i < INFO_PARTS; i++) {
        r->parts[i].name = part_names[i];
        if (r->parts[i].n_tensors) r->parts[r->n_parts++] = r->parts[i];
    }
}

static calla_status gather(gathering *g, calla_error *err)
{
    info_report *r = &g->report;
    const calla_engine_options *o = &g->args->engine.options;
    calla_machine_get_info(&r->machine);
    if (!r->model) return CALLA_OK;
    calla_status status = calla_checkpoint_inspect(r->model, &r->checkpoint, take_tensor, g, err);
    if (status != CALLA_OK) return status;
    drop_empty_parts(r);
    return calla_engine_plan(r->model, o, &r->plan, err);
}

/* ---- for people ---- */

/* "18.17 GiB". */
static const char *bytes_text(int64_t bytes, char buffer[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    snprintf(buffer, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

static void print_checkpoint(FILE *out, const info_report *r)
{
    const calla_checkpoint_info *c = &r->checkpoint;
    char text[32], more[32];
    fprintf(out, "checkpoint  %s\n", r->model);
    fprintf(out, "format      %s\n",
            c->layout == CALLA_LAYOUT_MLX4 ? "MLX affine 4-bit in groups of 64, routers 8-bit"
                                           : "Hugging Face bf16");
    fprintf(out, "layers      %d: %d gated delta net, %d attention; hidden size %d\n", c->n_layers,
            c->n_layers - c->n_attention_layers, c->n_attention_layers, c->hidden_size);
    fprintf(out, "heads       attention %d on %d key/value; delta net %d value on %d key\n",
            c->n_query_heads, c->n_kv_heads, c->n_value_heads, c->n_key_heads);
    fprintf(out, "experts     %d of width %d, %d per token; shared expert of width %d\n",
            c->n_experts, c->expert_width, c->n_experts_per_token, c->shared_expert_width);
    fprintf(out, "vocabulary  %d rows; tokenizer.json %s\n", c->n_vocab,
            c->has_tokenizer ? "present" : "absent: only token ids can be used");
    fprintf(out, "context     at most %d tokens\n", c->max_positions);
    fprintf(out, "parameters  %.3f billion in %s; %s read per token\n",
            (double)c->n_parameters / 1e9, bytes_text(c->text_bytes, text),
            bytes_text(c->token_bytes, more));
    fprintf(out, "files       %d, with %d tensors; %d of them skipped\n\n", c->n_files,
            c->n_tensors, c->n_skipped_tensors);
    fprintf(out, "%-24s %8s %16s\n", "part", "tensors", "bytes");
    int64_t n_tensors = 0, n_bytes = 0;
    for (int32_t i = 0; i < r->n_parts; i++) {
        fprintf(out, "%-24s %8lld %16lld\n", r->parts[i].name, (long long)r->parts[i].n_tensors,
                (long long)r->parts[i].n_bytes);
        n_tensors += r->parts[i].n_tensors;
        n_bytes += r->parts[i].n_bytes;
    }
    fprintf(out, "%-24s %8lld %16lld\n", "total", (long long)n_tensors, (long long)n_bytes);
    fputc('\n', out);
}

static void print_shortage(FILE *out, const calla_memory_plan *p, const calla_machine_info *m)
{
    if (m->ram_bytes > 0 && p->total_bytes > m->ram_bytes)
        fprintf(out, "  %s has less: %s\n",
                m->ram_is_limited ? "the control group" : "this machine",
                p->total_bytes - p->weights_bytes > m->ram_bytes
                    ? "it cannot run"
                    : "weights will be read from disk over and over");
    else if (m->ram_available_bytes > 0 && p->total_bytes > m->ram_available_bytes)
        fprintf(out, "  less is available now: weights will be read from disk over and over\n");
}

static void print_plan(FILE *out, const info_report *r)
{
    const calla_memory_plan *p = &r->plan;
    const struct {
        const char *name;
        int64_t bytes;
    } lines[] = {
        {p->on_device ? "weights" : "weights, mapped", p->weights_bytes},
        {"prepared tensors", p->prepared_bytes},
        {"KV cache", p->kv_bytes},
        {"recurrent state", p->state_bytes},
        {"snapshots, at most", p->snapshot_bytes},
        {"scratch", p->scratch_bytes},
        {"total", p->total_bytes},
    };
    char text[32];
    fprintf(out, "%smemory for a context of %d tokens, backend %s\n", p->on_device ? "device " : "",
            p->n_ctx, p->backend);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        fprintf(out, "  %-20s %12s\n", lines[i].name, bytes_text(lines[i].bytes, text));
    if (!p->on_device) print_shortage(out, p, &r->machine); /* a device says so when it is opened */
    fputc('\n', out);
}

static void print_machine(FILE *out, const calla_machine_info *m)
{
    char text[32];
    fprintf(out, "machine\n  processor   %s, %d usable", m->cpu, m->n_processors);
    fprintf(out, ", %d on %d cores in one of %d memory nodes\n  features   ", m->n_node_processors,
            m->n_node_cores, m->n_nodes);
    for (int32_t i = 0; i < m->n_cpu_features; i++) fprintf(out, " %s", m->cpu_features[i]);
    fprintf(out, "%s\n  kernels    ", m->n_cpu_features ? "" : " none known");
    for (const char *const *name = calla_isa_names(); *name; name++) fprintf(out, " %s", *name);
    fprintf(out, "\n  memory      %s", bytes_text(m->ram_bytes, text));
    fprintf(out, "%s, %s available", m->ram_is_limited ? " (limit of a control group)" : "",
            bytes_text(m->ram_available_bytes, text));
    if (m->lockable_bytes < INT64_MAX)
        fprintf(out, ", %s may be locked (ulimit -l)", bytes_text(m->lockable_bytes, text));
    fputc('\n', out);
}

/* ---- the command ---- */

/* -1 = go on, else the exit code. */
static int parse_options(int argc, char **argv, info_args *args)
{
    const cli_option own[] = {
        {0, "tensors", NULL, cli_true(&args->tensors), "list every tensor"},
        {0, "json", NULL, cli_true(&args->json), "as JSON"},
    };
    cli_option engine[CLI_N_ENGINE_OPTIONS];
    cli_engine_options(&args->engine, engine);
    const cli_syntax syntax = {.usage = usage,
                               .groups = {CLI_GROUP(NULL, own), CLI_GROUP("engine", engine)}};
    int code = cli_parse(argc, argv, &syntax, NULL, NULL);
    if (code >= 0) return code;
    if (args->tensors && !args->engine.model)
        return cli_usage_error("--tensors: of which model? -m DIR is missing");
    return -1;
}

static bool write_json(const gathering *g)
{
    char *text = info_report_json(&g->report, g->tensors);
    if (text) {
        cli_write(text, strlen(text));
        cli_write("\n", 1);
    }
    free(text);
    return text != NULL;
}

/* Everything into memory first, so that one write tells whether it arrived. */
static bool write_text(const gathering *g, const char *list, size_t n_list)
{
    const info_report *r = &g->report;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out) return false;
    if (r->model) {
        print_checkpoint(out, r);
        if (n_list) {
            fwrite(list, 1, n_list, out);
            fputc('\n', out);
        }
        print_plan(out, r);
    }
    print_machine(out, &r->machine);
    bool good = fclose(out) == 0;
    if (good) cli_write(text, n);
    free(text);
    return good;
}

int cmd_info(int argc, char **argv)
{
    info_args args = {0};
    int code = parse_options(argc, argv, &args);
    if (code >= 0) return code;
    char *list = NULL;
    size_t n_list = 0;
    calla_error err;
    gathering g = {.args = &args, .report.model = args.engine.model};
    if (args.tensors && args.json) g.tensors = json_array();
    if (args.tensors && !args.json) g.list = open_memstream(&list, &n_list);
    calla_status status = gather(&g, &err);
    bool good = !g.list || fclose(g.list) == 0;
    if (status != CALLA_OK)
        code = cli_fail(&err);
    else if (good && (args.json ? write_json(&g) : write_text(&g, list, n_list)))
        code = EXIT_OK;
    else
        code = cli_failf("no memory for the report");
    json_decref(g.tensors);
    free(list);
    return code;
}
