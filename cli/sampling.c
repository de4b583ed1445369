/* Sampling options. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void cli_sampling_init(cli_sampling_args *args)
{
    *args = (cli_sampling_args){.seed = -1,
                                .top_k = -1,
                                .temperature = NAN,
                                .top_p = NAN,
                                .min_p = NAN,
                                .presence_penalty = NAN,
                                .frequency_penalty = NAN,
                                .repetition_penalty = NAN};
}

void cli_sampling_deinit(cli_sampling_args *args)
{
    free(args->logit_bias);
    cli_sampling_init(args);
}

static bool take_bias(void *where, const char *option, const char *text)
{
    cli_sampling_args *args = where;
    const char *colon = strchr(text, ':');
    char id[16];
    int64_t token;
    double bias = -INFINITY;
    if (!colon || colon - text >= (ptrdiff_t)sizeof id) {
        cli_usage_error("%s: '%s' is not ID:BIAS", option, text);
        return false;
    }
    memcpy(id, text, (size_t)(colon - text));
    id[colon - text] = '\0';
    if (!cli_parse_int(option, id, 0, INT32_MAX, &token)) return false;
    if (strcmp(colon + 1, "-inf") != 0 && !cli_parse_real(option, colon + 1, -1e6, 1e6, &bias))
        return false;
    size_t n = (size_t)args->n_logit_bias + 1;
    calla_logit_bias *grown = realloc(args->logit_bias, n * sizeof *grown);
    if (!grown) {
        cli_failf("no memory for %zu logit biases", n);
        return false;
    }
    grown[n - 1] = (calla_logit_bias){(int32_t)token, (float)bias};
    args->logit_bias = grown;
    args->n_logit_bias++;
    return true;
}

void cli_sampling_options(cli_sampling_args *a, cli_option options[CLI_N_SAMPLING_OPTIONS])
{
    const cli_option table[] = {
        {0, "greedy", NULL, cli_true(&a->greedy), "always the most likely token (temperature 0)"},
        {0, "temp", "T", cli_real(&a->temperature, 0, 100), "temperature, 0 to 100"},
        {0, "temperature", "T", cli_real(&a->temperature, 0, 100), NULL},
        {0, "top-k", "N", cli_int32(&a->top_k, 0, INT32_MAX),
         "draw among the N most likely tokens, 0 = off"},
        {0, "top-p", "P", cli_real(&a->top_p, 0, 1),
         "draw among the most likely tokens that hold mass P, 1 = off"},
        {0, "min-p", "P", cli_real(&a->min_p, 0, 1),
         "leave out tokens less likely than P times the most likely one"},
        {0, "presence-penalty", "X", cli_real(&a->presence_penalty, -100, 100),
         "subtract X from the logits of tokens already generated"},
        {0, "frequency-penalty", "X", cli_real(&a->frequency_penalty, -100, 100),
         "subtract X for each time they were"},
        {0, "repetition-penalty", "X", cli_real(&a->repetition_penalty, 0.01, 100),
         "divide positive, multiply negative logits of them by X"},
        {0, "seed", "N", cli_int64(&a->seed, 0, INT64_MAX), "same seed, same text [random]"},
        {0, "logit-bias", "ID:BIAS", cli_other(take_bias, a),
         "add BIAS to a token's logit, -inf bans it (repeatable)"},
    };
    _Static_assert(sizeof table == CLI_N_SAMPLING_OPTIONS * sizeof table[0], "as announced");
    memcpy(options, table, sizeof table);
}

static void set_if_given(double given, float *value)
{
    if (!isnan(given)) *value = (float)given;
}

/* 53 bits, so that the seed survives as a JSON number in any reader. */
static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        seed = (uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec;
    }
    return seed >> 11;
}

calla_status cli_sampling_resolve(const cli_sampling_args *args, const char *model,
                                  calla_sampling *sampling, calla_error *err)
{
    calla_sampling s;
    calla_status status = calla_sampling_defaults(model, &s, err);
    if (status != CALLA_OK) return status;
    set_if_given(args->temperature, &s.temperature);
    if (args->greedy) s.temperature = 0;
    if (args->top_k >= 0) s.top_k = args->top_k;
    set_if_given(args->top_p, &s.top_p);
    set_if_given(args->min_p, &s.min_p);
    set_if_given(args->presence_penalty, &s.presence_penalty);
    set_if_given(args->frequency_penalty, &s.frequency_penalty);
    set_if_given(args->repetition_penalty, &s.repetition_penalty);
    s.seed = args->seed >= 0 ? (uint64_t)args->seed : random_seed();
    s.logit_bias = args->logit_bias;
    s.n_logit_bias = args->n_logit_bias;
    *sampling = s;
    return CALLA_OK;
}
