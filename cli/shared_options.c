/* Options that several commands have. */
#include "cli.h"

#include <string.h>

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

void cli_engine_options(cli_engine_args *args, cli_option options[CLI_N_ENGINE_OPTIONS])
{
    calla_engine_options *o = &args->options;
    const cli_option table[] = {
        {'m', "model", "DIR", cli_text(&args->model), "checkpoint directory"},
        {0, "backend", "NAME", cli_text(&o->backend), "auto, cpu [auto]"},
        {0, "isa", "NAME", cli_text(&o->isa), "auto, f32 (the reference), c ... [auto]"},
        {0, "kv", "TYPE", cli_other(take_kv, &o->kv), "f32, fp16 [fp16; f32 with --isa f32]"},
        {0, "threads", "N", cli_int32(&o->n_threads, 1, 1024),
         "[all processors this process may use]"},
        {0, "ctx", "N", cli_int32(&o->n_ctx, 1, INT32_MAX),
         "context in tokens [8192, at most the model's]"},
        {0, "chunk", "N", cli_int32(&o->prefill_chunk, 1, 65536),
         "tokens per prefill chunk [2048, at most the context]"},
    };
    _Static_assert(sizeof table == CLI_N_ENGINE_OPTIONS * sizeof table[0], "as announced");
    memcpy(options, table, sizeof table);
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
