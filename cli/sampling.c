/* Sampling options. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char CLI_SAMPLING_HELP[] =
    "      --greedy          always the most likely token (temperature 0)\n"
    "      --temp T          temperature, 0 to 100\n"
    "      --top-k N         draw among the N most likely tokens, 0 = off\n"
    "      --top-p P         draw among the most likely tokens that hold mass P, 1 = off\n"
    "      --min-p P         leave out tokens less likely than P times the most likely one\n"
    "      --presence-penalty X    subtract X from the logits of tokens already generated\n"
    "      --frequency-penalty X   subtract X for each time they were\n"
    "      --repetition-penalty X  divide positive, multiply negative logits of them by X\n"
    "      --seed N          same seed, same text [random]\n"
    "      --logit-bias ID:BIAS    add BIAS to a token's logit, -inf bans it (repeatable)\n";

void cli_sampling_init(cli_sampling_args *args)
{
    *args = (cli_sampling_args){.top_k = -1,
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

static bool add_bias(const char *argument, cli_sampling_args *args)
{
    const char *colon = strchr(argument, ':');
    char id[16];
    int64_t token;
    double bias = -INFINITY;
    if (!colon || colon - argument >= (ptrdiff_t)sizeof id) {
        cli_usage_error("--logit-bias: '%s' is not ID:BIAS", argument);
        return false;
    }
    memcpy(id, argument, (size_t)(colon - argument));
    id[colon - argument] = '\0';
    if (!cli_parse_int("--logit-bias", id, 0, INT32_MAX, &token)) return false;
    if (strcmp(colon + 1, "-inf") != 0 &&
        !cli_parse_float("--logit-bias", colon + 1, -1e6, 1e6, &bias))
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

int cli_sampling_option(int value, const char *argument, cli_sampling_args *args)
{
    bool ok = true;
    switch (value) {
    case CLI_OPT_GREEDY:
        args->greedy = true;
        break;
    case CLI_OPT_TEMPERATURE:
        ok = cli_parse_float("--temp", argument, 0, 100, &args->temperature);
        break;
    case CLI_OPT_TOP_K:
        ok = cli_parse_int("--top-k", argument, 0, INT32_MAX, &args->top_k);
        break;
    case CLI_OPT_TOP_P:
        ok = cli_parse_float("--top-p", argument, 0, 1, &args->top_p);
        break;
    case CLI_OPT_MIN_P:
        ok = cli_parse_float("--min-p", argument, 0, 1, &args->min_p);
        break;
    case CLI_OPT_PRESENCE:
        ok = cli_parse_float("--presence-penalty", argument, -100, 100, &args->presence_penalty);
        break;
    case CLI_OPT_FREQUENCY:
        ok = cli_parse_float("--frequency-penalty", argument, -100, 100, &args->frequency_penalty);
        break;
    case CLI_OPT_REPETITION:
        ok =
            cli_parse_float("--repetition-penalty", argument, 0.01, 100, &args->repetition_penalty);
        break;
    case CLI_OPT_SEED:
        args->has_seed = true;
        ok = cli_parse_int("--seed", argument, 0, INT64_MAX, &args->seed);
        break;
    case CLI_OPT_BIAS:
        ok = add_bias(argument, args);
        break;
    default:
        return 0;
    }
    return ok ? 1 : -1;
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
    if (args->top_k >= 0) s.top_k = (int32_t)args->top_k;
    set_if_given(args->top_p, &s.top_p);
    set_if_given(args->min_p, &s.min_p);
    set_if_given(args->presence_penalty, &s.presence_penalty);
    set_if_given(args->frequency_penalty, &s.frequency_penalty);
    set_if_given(args->repetition_penalty, &s.repetition_penalty);
    s.seed = args->has_seed ? (uint64_t)args->seed : random_seed();
    s.logit_bias = args->logit_bias;
    s.n_logit_bias = args->n_logit_bias;
    *sampling = s;
    return CALLA_OK;
}
