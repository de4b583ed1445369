#include "base/philox.h"
#include "engine/sampler.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fixture: a sampler over V ids ---- */

enum { V = 64 };

static sampler s;
static token_counts counts;

static int setup(void **state)
{
    (void)state;
    return sampler_init(&s, V, NULL) != CALLA_OK || token_counts_init(&counts, V + 8, NULL);
}

static int teardown(void **state)
{
    (void)state;
    sampler_deinit(&s);
    token_counts_deinit(&counts);
    return 0;
}

static calla_sampled choose(const float *logits, const calla_sampling *p, int64_t position)
{
    calla_error err;
    calla_sampled out = {.token = -1};
    assert_ok(sampling_check(p, s.n_tokens, &err), &err);
    assert_ok(sampler_choose(&s, logits, p, &counts, position, &out, &err), &err);
    return out;
}

/* Deterministic, distinct-looking logits. */
static void fill(float *logits, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) logits[i] = (float)(philox_uniform(seed, (uint64_t)i, 7) * 8 - 4);
}

/* ---- exact cases ---- */

static void greedy_takes_the_largest_and_the_lowest_id_on_ties(void **state)
{
    (void)state;
    float logits[V] = {0};
    logits[9] = logits[30] = logits[63] = 2.5f;
    assert_int_equal(choose(logits, &(calla_sampling){0}, 3).token, 9);
    logits[63] = 2.6f;
    assert_int_equal(choose(logits, &(calla_sampling){0}, 3).token, 63);
}

static void padding_ids_are_never_chosen(void **state)
{
    (void)state;
    float logits[V + 8];
    fill(logits, V + 8, 1);
    for (int i = V; i < V + 8; i++) logits[i] = 50;
    calla_sampled out = choose(logits, &(calla_sampling){.n_top_logprobs = 20}, 0);
    assert_true(out.token < V);
    assert_true(out.logprob < 0 && out.logprob > -10); /* they are not in the sum either */
    for (int i = 0; i < out.n_top; i++) assert_true(out.top_tokens[i] < V);
    for (int p = 0; p < 200; p++)
        assert_true(choose(logits, &(calla_sampling){.temperature = 5}, p).token < V);
}

static void logprobs_are_log_softmax_of_adjusted_logits(void **state)
{
    (void)state;
    float logits[V];
    fill(logits, V, 2);
    calla_logit_bias bias[] = {{5, 1.5f}, {6, -INFINITY}, {5, 0.25f}};
    token_counts_clear(&counts);
    token_counts_add(&counts, 7);
    token_counts_add(&counts, 7);
    calla_sampling p = {.temperature = 0.3f, /* must not matter for log-probabilities */
                        .top_k = 3,
                        .frequency_penalty = 0.5f,
                        .presence_penalty = 0.25f,
                        .repetition_penalty = 1.25f,
                        .logit_bias = bias,
                        .n_logit_bias = 3,
                        .n_top_logprobs = 20};
    calla_sampled out = choose(logits, &p, 11);
    token_counts_clear(&counts);

    double adjusted[V], total = 0;
    for (int i = 0; i < V; i++) adjusted[i] = (double)logits[i];
    adjusted[5] += 1.75;
    adjusted[6] = -INFINITY;
    adjusted[7] = (adjusted[7] > 0 ? adjusted[7] / 1.25 : adjusted[7] * 1.25) - 1.0 - 0.25;
    for (int i = 0; i < V; i++) total += exp(adjusted[i]);
    assert_float_equal((double)out.logprob, adjusted[out.token] - log(total), 2e-6);
    assert_int_equal(out.n_top, 20);
    for (int i = 0; i < 20; i++) {
        int32_t t = out.top_tokens[i], n_larger = 0;
        for (int j = 0; j < V; j++) n_larger += adjusted[j] > adjusted[t];
        assert_int_equal(n_larger, i);
        assert_float_equal((double)out.top_logprobs[i], adjusted[t] - log(total), 2e-6);
    }
}

static void penalties_count_generated_tokens_and_change_greedy(void **state)
{
    (void)state;
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = -5;
    logits[10] = 2.0f, logits[11] = 1.5f, logits[12] = -0.1f;
    calla_sampling presence = {.presence_penalty = 0.6f}, frequency = {.frequency_penalty = 0.3f},
                   repetition = {.repetition_penalty = 1.5f};
    token_counts_clear(&counts);
    assert_int_equal(choose(logits, &presence, 0).token, 10);
    token_counts_add(&counts, 10);
    assert_int_equal(choose(logits, &presence, 0).token, 11);
    assert_int_equal(choose(logits, &frequency, 0).token, 10);  /* 1.7 against 1.5 */
    assert_int_equal(choose(logits, &repetition, 0).token, 11); /* 1.33 against 1.5 */
    token_counts_add(&counts, 10);
    assert_int_equal(choose(logits, &frequency, 0).token, 11); /* 1.4 against 1.5 */
    token_counts_add(&counts, 11);
    assert_int_equal(choose(logits, &presence, 0).token, 10); /* 1.4 against 0.9 */
    token_counts_clear(&counts);
    assert_int_equal(choose(logits, &frequency, 0).token, 10);
    /* Negative logits are multiplied: repetition must never favour a token. */
    logits[10] = logits[11] = -0.15f;
    token_counts_add(&counts, 12);
    assert_int_equal(choose(logits, &(calla_sampling){.repetition_penalty = 2}, 0).token, 10);
    token_counts_clear(&counts);
}

/* Logits near the end of f32's range are finite, and so is what penalties make of them. */
static void penalties_stay_finite(void **state)
{
    (void)state;
    float logits[V] = {0};
    logits[10] = 3e38f, logits[11] = -3e38f;
    token_counts_clear(&counts);
    token_counts_add(&counts, 10);
    token_counts_add(&counts, 11);
    calla_sampling p = {.temperature = 1, .repetition_penalty = 0.01f, .presence_penalty = -100};
    calla_sampled out = choose(logits, &p, 3);
    assert_int_equal(out.token, 10);
    assert_true(out.logprob == 0);
    token_counts_clear(&counts);
}

static void bias_and_mask_restrict(void **state)
{
    (void)state;
    float logits[V];
    fill(logits, V, 3);
    uint32_t mask[(V + 31) / 32] = {0};
    mask[0] = 1u << 4 | 1u << 17;
    mask[1] = 1u << 9;
    calla_sampling p = {.temperature = 1.5f, .token_mask = mask, .n_top_logprobs = 20};
    bool seen[V] = {0};
    for (int i = 0; i < 400; i++) {
        calla_sampled out = choose(logits, &p, i);
        seen[out.token] = true;
        assert_int_equal(out.n_top, 3);
    }
    for (int i = 0; i < V; i++) assert_int_equal(seen[i], i == 4 || i == 17 || i == 41);

    calla_logit_bias bias[] = {{4, -INFINITY}, {17, -INFINITY}, {41, -INFINITY}};
    p.logit_bias = bias, p.n_logit_bias = 2;
    assert_int_equal(choose(logits, &p, 0).token, 41);
    p.n_logit_bias = 3;
    calla_error err;
    calla_sampled out = {.token = 77};
    assert_error(sampler_choose(&s, logits, &p, &counts, 5, &out, &err), CALLA_ERR_INPUT, &err,
                 "no token is left to sample at position 5");
    assert_int_equal(out.token, 77);
    calla_logit_bias lift[] = {{50, 100}};
    assert_int_equal(
        choose(logits, &(calla_sampling){.logit_bias = lift, .n_logit_bias = 1}, 0).token, 50);
}

/* ---- which tokens can be drawn ---- */

/* Draws many times; sets frequency[V]. */
static void draw_many(const float *logits, const calla_sampling *p, int n_draws, double *frequency)
{
    memset(frequency, 0, V * sizeof *frequency);
    for (int i = 0; i < n_draws; i++) frequency[choose(logits, p, i).token] += 1.0 / n_draws;
}

static void only_tokens_inside_all_filters_are_drawn(void **state)
{
    (void)state;
    /* Weights 8, 4, 2, 1, 1 at ids 40, 3, 20, 8, 9 (sum 16); the rest far below. */
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = -60;
    logits[40] = logf(8), logits[3] = logf(4), logits[20] = logf(2), logits[8] = logits[9] = 0;
    const struct {
        calla_sampling p;
        const char *kept; /* ids */
    } cases[] = {
        {{.top_k = 1}, " 40 "},
        {{.top_k = 4}, " 40 3 20 8 "}, /* the lower id of a tie */
        {{.top_p = 0.49f}, " 40 "},
        {{.top_p = 0.51f}, " 40 3 "}, /* the token that crosses is kept */
        {{.top_p = 0.76f}, " 40 3 20 "},
        {{.top_p = 0.9f}, " 40 3 20 8 "},
        {{.min_p = 0.3f}, " 40 3 "},
        {{.min_p = 0.125f}, " 40 3 20 8 9 "},
        {{.min_p = 1}, " 40 "},
        {{.top_k = 3, .top_p = 0.8f}, " 40 3 "}, /* 12/14 reaches 0.8 after top-k */
        {{.top_k = 2, .min_p = 0.2f}, " 40 3 "},
        {{.top_k = V + 5, .top_p = 2}, " 40 3 20 8 9 "},
        {{.top_p = 1e-9f}, " 40 "},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double frequency[V];
        calla_sampling p = cases[c].p;
        p.temperature = 1, p.seed = 99;
        draw_many(logits, &p, 500, frequency);
        for (int i = 0; i < V; i++) {
            char id[16];
            snprintf(id, sizeof id, " %d ", i);
            bool kept = strstr(cases[c].kept, id) != NULL;
            if (kept != (frequency[i] > 0))
                fail_msg("case %zu, id %d: drawn %g times of 1", c, i, frequency[i]);
        }
    }
}

static void frequencies_follow_the_probabilities(void **state)
{
    (void)state;
    enum { N_DRAWS = 40000 };
    float logits[V];
    double frequency[V], expected[V], total = 0, chi2 = 0;
    fill(logits, V, 4);
    for (int i = 0; i < V; i++) total += expected[i] = exp((double)logits[i] / 1.7);
    draw_many(logits, &(calla_sampling){.temperature = 1.7f, .seed = 5}, N_DRAWS, frequency);
    for (int i = 0; i < V; i++) {
        double difference = frequency[i] - expected[i] / total;
        chi2 += difference * difference * N_DRAWS / (expected[i] / total);
    }
    /* 63 degrees of freedom: mean 63, standard deviation 11.2. Fixed seed, so never flaky. */
    if (chi2 > 110 || chi2 < 30) fail_msg("chi-square %g", chi2);
}

static void top_p_agrees_with_a_full_sort_on_large_vocabularies(void **state)
{
    (void)state;
    enum { N = 5000 };
    sampler large;
    calla_error err;
    assert_ok(sampler_init(&large, N, &err), &err);
    float *logits = malloc(N * sizeof *logits);
    const float spreads[] = {0.01f, 0.5f, 3, 12}; /* from nearly flat to nearly certain */
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < N; i++) {
            double u = philox_uniform(8, (uint64_t)i, (uint64_t)c);
            logits[i] = floorf((float)u * 64) / 64 * spreads[c]; /* many ties */
        }
        double weight[N], total = 0;
        for (int i = 0; i < N; i++) total += weight[i] = exp((double)logits[i]);
        for (int i = 0; i < 300; i++) {
            calla_sampled out;
            calla_sampling p = {.temperature = 1, .top_p = 0.7f, .seed = 3};
            assert_ok(sampler_choose(&large, logits, &p, &counts, i, &out, &err), &err);
            double before = 0; /* mass of the tokens ahead of it */
            for (int j = 0; j < N; j++)
                if (logits[j] > logits[out.token] ||
                    (logits[j] == logits[out.token] && j < out.token))
                    before += weight[j];
            if (before > 0.7 * total * (1 + 1e-6)) fail_msg("spread %d: %g", c, before / total);
        }
    }
    free(logits);
    sampler_deinit(&large);
}

/* Several pieces, the last one short; all that is computed piece by piece. */
static void threads_change_no_bit_of_a_result(void **state)
{
    (void)state;
    enum { N = 5 * SAMPLER_PIECE / 2 };
    sampler large;
    calla_error err;
    token_counts none = {0};
    assert_ok(sampler_init(&large, N, &err), &err);
    float *logits = malloc(N * sizeof *logits);
    uint32_t *mask = malloc(N / 8);
    for (int i = 0; i < N / 32; i++) mask[i] = (uint32_t)i * 2654435761u | 1;
    for (int i = 0; i < 40; i++) {
        fill(logits, N, (uint64_t)i);
        logits[i * 251] = logits[N - 1 - i] = 4.5f; /* the largest, in two pieces */
        double total = 0;
        for (int j = 0; j < N; j++) total += exp((double)logits[j]);
        calla_sampling p = {.temperature = i % 2 ? 1 : 0, .token_mask = i % 4 / 2 ? mask : NULL};
        calla_sampled alone, together;
        assert_ok(sampler_choose(&large, logits, &p, &none, i, &alone, &err), &err);
        for (int n = 1; n <= 4; n++) {
            assert_ok(thread_pool_create(n, &large.pool, &err), &err);
            assert_ok(sampler_choose(&large, logits, &p, &none, i, &together, &err), &err);
            assert_int_equal(together.token, alone.token);
            assert_memory_equal(&together.logprob, &alone.logprob, sizeof alone.logprob);
            thread_pool_free(large.pool);
        }
        large.pool = NULL;
        if (i % 2 == 0 && !p.token_mask) {
            assert_int_equal(alone.token, i * 251);
            assert_true(fabs((double)alone.logprob - (4.5 - log(total))) < 1e-5);
        }
        logits[N - 1] = NAN;
        assert_error(sampler_choose(&large, logits, &p, &none, i, &alone, &err), CALLA_ERR_NUMERIC,
                     &err, "logit nan for token 10239");
    }
    free(mask);
    free(logits);
    sampler_deinit(&large);
}

/* The first few in order are drawn from without a look at the rest; here min_p leaves as many
 * of 100 as of 1000 or of all. */
static void a_draw_is_the_same_whatever_top_k_lies_beyond_the_tokens_kept(void **state)
{
    (void)state;
    enum { N = 2000 };
    sampler large;
    calla_error err;
    token_counts none = {0};
    assert_ok(sampler_init(&large, N, &err), &err);
    float logits[N];
    int different = 0;
    for (int i = 0; i < 300; i++) {
        fill(logits, N, (uint64_t)i);
        for (int j = 0; j < 40; j++) logits[(j * 331 + i) % N] = 6 + (float)(j % 13) / 8;
        calla_sampling p = {.temperature = 0.8f, .seed = 5, .top_k = 100, .min_p = 0.1f};
        calla_sampled few, more, all;
        assert_ok(sampler_choose(&large, logits, &p, &none, i, &few, &err), &err);
        p.top_k = 1000;
        assert_ok(sampler_choose(&large, logits, &p, &none, i, &more, &err), &err);
        p.top_k = 0;
        assert_ok(sampler_choose(&large, logits, &p, &none, i, &all, &err), &err);
        assert_int_equal(few.token, all.token);
        assert_int_equal(more.token, all.token);
        different += few.token != (i + 331 * 12) % N; /* the likeliest of all */
    }
    assert_true(different > 200);
    sampler_deinit(&large);
}

static void select_in_order_whatever_the_input_order(void **state)
{
    (void)state;
    float logits[V];
    for (int order = 0; order < 4; order++) {
        for (int i = 0; i < V; i++)
            logits[i] = order == 0   ? (float)i
                        : order == 1 ? (float)-i
                        : order == 2 ? 1.0f
                                     : (float)(i * 37 % V);
        calla_sampled out = choose(logits, &(calla_sampling){.n_top_logprobs = 20}, 0);
        assert_int_equal(out.n_top, 20);
        assert_int_equal(out.top_tokens[0], out.token);
        for (int i = 0; i < 20; i++) {
            int32_t expected = order == 0 ? V - 1 - i : i;
            if (order < 3)
                assert_int_equal(out.top_tokens[i], expected);
            else
                assert_int_equal(out.top_tokens[i] * 37 % V, V - 1 - i);
        }
    }
}

/* ---- seed and position ---- */

static void philox_has_its_published_answers(void **state)
{
    (void)state;
    /* Random123's kat_vectors, philox4x32 10 rounds. */
    uint32_t r[4];
    philox4x32(0, 0, 0, r);
    assert_int_equal(r[0], 0x6627e8d5);
    assert_int_equal(r[1], 0xe169c58d);
    assert_int_equal(r[2], 0xbc57ac4c);
    assert_int_equal(r[3], 0x9b00dbd8);
    philox4x32(UINT64_MAX, UINT64_MAX, UINT64_MAX, r);
    assert_int_equal(r[0], 0x408f276d);
    assert_int_equal(r[1], 0x41c83b0e);
    assert_int_equal(r[2], 0xa20bc7c6);
    assert_int_equal(r[3], 0x6d5451fd);
    philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull, r);
    assert_int_equal(r[0], 0xd16cfe09);
    assert_int_equal(r[1], 0x94fdcceb);
    assert_int_equal(r[2], 0x5001e420);
    assert_int_equal(r[3], 0x24126ea1);
}

static void a_draw_is_the_inverse_cdf_in_id_order_at_philox_of_seed_and_position(void **state)
{
    (void)state;
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = 0; /* 64 equal tokens: token = floor(64 u) */
    for (int position = 0; position < 100; position++) {
        uint64_t seed = 0x123456789abcdefull;
        calla_sampling p = {.temperature = 1, .seed = seed};
        int32_t expected = (int32_t)(64 * philox_uniform(seed, (uint64_t)position, 0));
        assert_int_equal(choose(logits, &p, position).token, expected);
    }
    calla_sampling p = {.temperature = 1, .seed = 1};
    const int32_t known[8] = {56, 43, 15, 48, 15, 10, 28, 30};
    for (int position = 0; position < 8; position++)
        assert_int_equal(choose(logits, &p, position).token, known[position]);
}

static void extreme_temperatures(void **state)
{
    (void)state;
    float logits[V];
    fill(logits, V, 6);
    int32_t greedy = choose(logits, &(calla_sampling){0}, 0).token;
    const float cold[] = {1e-3f, 1e-20f, 1e-38f, 1e-44f};
    for (int i = 0; i < 4; i++)
        assert_int_equal(choose(logits, &(calla_sampling){.temperature = cold[i]}, i).token,
                         greedy);
    for (int i = 0; i < V; i++) logits[i] = i % 2 ? 3e38f : -3e38f; /* differences overflow */
    for (int i = 0; i < 50; i++)
        assert_int_equal(choose(logits, &(calla_sampling){.temperature = 1}, i).token % 2, 1);
}

/* ---- refusals ---- */

static void bad_logits_are_numeric_errors(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int c = 0; c < 3; c++) {
        for (int at = 0; at < V; at += 21) {
            float logits[V] = {0};
            logits[at] = bad[c];
            calla_error err;
            calla_sampled out;
            char part[64];
            snprintf(part, sizeof part, "for token %d after position 6", at);
            assert_error(sampler_choose(&s, logits, &(calla_sampling){0}, &counts, 7, &out, &err),
                         CALLA_ERR_NUMERIC, &err, part);
        }
    }
}

static void parameters_out_of_range_are_refused_with_their_value(void **state)
{
    (void)state;
    calla_logit_bias negative = {-1, 1}, beyond = {V, 1}, plus = {0, INFINITY}, nan = {3, NAN},
                     huge = {3, 1e7f};
    const struct {
        calla_sampling p;
        const char *part;
    } cases[] = {
        {{.temperature = -0.5f}, "temperature is -0.5"},
        {{.temperature = NAN}, "temperature is nan"},
        {{.temperature = 101}, "temperature is 101"},
        {{.top_k = -3}, "top_k is -3"},
        {{.top_p = -0.1f}, "top_p is -0.1"},
        {{.top_p = NAN}, "top_p is nan"},
        {{.min_p = 1.5f}, "min_p is 1.5"},
        {{.presence_penalty = INFINITY}, "presence_penalty is inf"},
        {{.frequency_penalty = -200}, "frequency_penalty is -200"},
        {{.repetition_penalty = -1}, "repetition_penalty is -1"},
        {{.n_top_logprobs = 21}, "21 top log-probabilities"},
        {{.n_top_logprobs = -1}, "-1 top log-probabilities"},
        {{.logit_bias = &negative, .n_logit_bias = 1}, "token -1, the ids are 0 to 63"},
        {{.logit_bias = &beyond, .n_logit_bias = 1}, "token 64, the ids are 0 to 63"},
        {{.logit_bias = &plus, .n_logit_bias = 1}, "token 0 is inf"},
        {{.logit_bias = &nan, .n_logit_bias = 1}, "token 3 is nan"},
        {{.logit_bias = &huge, .n_logit_bias = 1}, "token 3 is 1e+07"},
        {{.n_logit_bias = -1}, "n_logit_bias is -1"},
    };
    calla_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_error(sampling_check(&cases[i].p, V, &err), CALLA_ERR_INPUT, &err, cases[i].part);
    assert_ok(
        sampling_check(&(calla_sampling){.temperature = 2, .top_p = 1, .top_k = 1 << 30}, V, &err),
        &err);
}

/* ---- generation_config.json ---- */

static const char *dir_with(const char *text)
{
    const char *dir = temporary_dir();
    char path[256];
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return dir;
}

static void defaults_come_from_generation_config(void **state)
{
    (void)state;
    calla_error err;
    calla_sampling p;
    assert_ok(calla_sampling_defaults(temporary_dir(), &p, &err), &err);
    assert_true(p.temperature == 1 && p.top_k == 20 && p.top_p == 0.95f && p.min_p == 0);
    assert_ok(calla_sampling_defaults(
                  dir_with("{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 7, \"top_p\": "
                           "0.8, \"min_p\": 0.05, \"presence_penalty\": 1.5, "
                           "\"repetition_penalty\": 1.1, \"eos_token_id\": [1, 2]}"),
                  &p, &err),
              &err);
    assert_true(p.temperature == 0.6f && p.top_k == 7 && p.top_p == 0.8f && p.min_p == 0.05f);
    assert_true(p.presence_penalty == 1.5f && p.repetition_penalty == 1.1f);
    assert_ok(
        calla_sampling_defaults(dir_with("{\"do_sample\": false, \"top_k\": null}"), &p, &err),
        &err);
    assert_true(p.temperature == 0 && p.top_k == 20);

    const char *const bad[][2] = {
        {"{\"temperature\": \"hot\"}", "temperature is not a number"},
        {"{\"temperature\": -1}", "temperature is -1"},
        {"{\"top_k\": 1.5}", "top_k is not a whole number"},
        {"{\"top_k\": -1}", "top_k is -1"},
        {"{\"do_sample\": 3}", "do_sample is not true or false"},
        {"[1]", "an array where an object was expected"},
        {"{\"top_k\": ", "generation_config.json"},
    };
    p.top_k = 1234;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_error(calla_sampling_defaults(dir_with(bad[i][0]), &p, &err), CALLA_ERR_INPUT, &err,
                     bad[i][1]);
    assert_int_equal(p.top_k, 1234);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_on_ties),
        cmocka_unit_test(padding_ids_are_never_chosen),
        cmocka_unit_test(logprobs_are_log_softmax_of_adjusted_logits),
        cmocka_unit_test(penalties_count_generated_tokens_and_change_greedy),
        cmocka_unit_test(penalties_stay_finite),
        cmocka_unit_test(bias_and_mask_restrict),
        cmocka_unit_test(only_tokens_inside_all_filters_are_drawn),
        cmocka_unit_test(frequencies_follow_the_probabilities),
        cmocka_unit_test(top_p_agrees_with_a_full_sort_on_large_vocabularies),
        cmocka_unit_test(threads_change_no_bit_of_a_result),
        cmocka_unit_test(a_draw_is_the_same_whatever_top_k_lies_beyond_the_tokens_kept),
        cmocka_unit_test(select_in_order_whatever_the_input_order),
        cmocka_unit_test(philox_has_its_published_answers),
        cmocka_unit_test(a_draw_is_the_inverse_cdf_in_id_order_at_philox_of_seed_and_position),
        cmocka_unit_test(extreme_temperatures),
        cmocka_unit_test(bad_logits_are_numeric_errors),
        cmocka_unit_test(parameters_out_of_range_are_refused_with_their_value),
        cmocka_unit_test(defaults_come_from_generation_config),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
