/* Options that several commands have. */
#include "cli.h"

#include <string.h>
#include <sys/resource.h>

/* ---- what opens an engine ---- */

static bool take_kv(void *where, const char *option, const char *text)
{
    calla_kv_type *kv = where;
    if (strcmp(text, "f32") == 0)
        *kv = CALLA_KV_F32;
    else if (strcmp(text, "fp16") == 0)
        *kv = CALLA_KV_FP16;
    else {
        cli_usage_error("%s: '%s' is not f32 or fp16", option, text);
        return false;
    }
    return true;
}

/* The number of `text` in `names`, which ends with NULL: into *where, an enum from 0 on. */
static bool take_name(int *where, const char *option, const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *where = i;
        return true;
    }
    cli_usage_error("%s: '%s' is not %s, %s or %s", option, text, names[0], names[1], names[2]);
    return false;
}

static bool take_load(void *where, const char *option, const char *text)
{
    static const char *const names[] = {"auto", "map", "copy", NULL}; /* as calla_load */
    int value = 0;
    if (!take_name(&value, option, text, names)) return false;
    *(calla_load *)where = (calla_load)value;
    return true;
}

static bool take_warm_up(void *where, const char *option, const char *text)
{
    static const char *const names[] = {"auto", "no", "yes", NULL}; /* as calla_warm_up */
    int value = 0;
    if (!take_name(&value, option, text, names)) return false;
    *(calla_warm_up *)where = (calla_warm_up)value;
    return true;
}

void cli_engine_options(cli_engine_args *args, cli_option options[CLI_N_ENGINE_OPTIONS])
{
    calla_engine_options *o = &args->options;
    const cli_option table[] = {
        {'m', "model", "DIR", cli_text(&args->model), "checkpoint directory"},
        {0, "backend", "NAME", cli_text(&o->backend), "auto, cpu, cuda [auto]"},
        {0, "isa", "NAME", cli_text(&o->isa), "auto, f32 (the reference), c ... [auto]"},
        {0, "kv", "TYPE", cli_other(take_kv, &o->kv), "f32, fp16 [fp16; f32 with --isa f32]"},
        {0, "threads", "N", cli_int32(&o->n_threads, 1, 1024),
         "[measured: at most the cores of one memory node]"},
        {0, "no-pin", NULL, cli_true(&o->no_pin),
         "do not keep the threads on the processors of one memory node"},
        {0, "load", "HOW", cli_other(take_load, &o->load),
         "weights: map (from the page cache, shared), copy (into memory of its own: faster by some "
         "per cent, slower to start), auto: copy if memory holds both [auto]"},
        {0, "warm-up", "WHEN", cli_other(take_warm_up, &o->warm_up),
         "read mapped weights ahead: yes, no, auto: all if they fit in memory, else what every "
         "token needs [auto]"},
        {0, "ctx", "N", cli_int32(&o->n_ctx, 1, INT32_MAX),
         "context in tokens [8192, at most the model's]"},
        {0, "chunk", "N", cli_int32(&o->prefill_chunk, 1, 65536),
         "tokens per prefill chunk [2048, CUDA 4096, at most the context]"},
    };
    _Static_assert(sizeof table == CLI_N_ENGINE_OPTIONS * sizeof table[0], "as announced");
    memcpy(options, table, sizeof table);
}

static void show_opening(void *user, const char *phase, int64_t done, int64_t total)
{
    (void)user;
    cli_progress(phase, done, total);
}

void cli_watch_opening(calla_engine_options *options)
{
    options->progress = show_opening;
    options->cancel = cli_cancel_flag();
}

calla_status cli_engine_open(const char *dir, const calla_engine_options *options,
                             calla_engine **engine, calla_error *err)
{
    calla_engine_options o = *options;
    cli_watch_opening(&o);
    calla_status status = calla_engine_open(dir, &o, engine, err);
    cli_progress_end();
    return status;
}

cli_disk_reads cli_count_disk_reads(void)
{
    struct rusage usage;
    char line[128];
    long long bytes = 0;
    FILE *f = fopen("/proc/self/io", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "read_bytes: %lld", &bytes) == 1) break;
    if (f) fclose(f);
    getrusage(RUSAGE_SELF, &usage);
    return (cli_disk_reads){usage.ru_majflt, bytes};
}

/* ---- what writes a checkpoint ---- */

void cli_writing_options(cli_writing_args *args, cli_option options[CLI_N_WRITING_OPTIONS])
{
    const cli_option table[] = {
        {'f', "overwrite", NULL, cli_true(&args->overwrite),
         "replace the checkpoint in DST; other files there stay"},
        {0, "shard-size", "N", cli_int32(&args->shard_megabytes, 1, 1000000),
         "largest size of a weight file in MB [5369]"},
    };
    _Static_assert(sizeof table == CLI_N_WRITING_OPTIONS * sizeof table[0], "as announced");
    memcpy(options, table, sizeof table);
}

calla_write_options cli_writing_begin(const cli_writing_args *args,
                                      void (*progress)(void *user, int64_t done, int64_t total))
{
    return (calla_write_options){.overwrite = args->overwrite,
                                 .progress = progress,
                                 .cancel = cli_cancel_flag(),
                                 .max_shard_bytes = (int64_t)args->shard_megabytes * 1000000};
}
