/* A session whose backend is one step ahead of it (the device of support/fake_backend.h): the
 * tokens are those of steps run one by one, whatever happens while a step is under way. */
#include "engine/engine.h"
#include "support/fake_backend.h"
#include "support/support.h"

#include <math.h>
#include <string.h>

enum { N_SESSIONS = 3, CONTEXT = 60, PROMPT = 6 };

static calla_engine *engine;
static calla_session *sessions[N_SESSIONS];
static calla_error err;
static const calla_sampling greedy;

static void open_backend(bool device)
{
    const backend_ops *const list[] = {&fake_ops, NULL};
    model_weights weights = {
        .config = {.n_vocab = FAKE_VOCAB, .max_positions = 500, .n_layers = 4}};
    engine_vocabulary vocabulary = {FAKE_TOKENS, FAKE_TURN};
    calla_engine_options options = {.n_ctx = CONTEXT,
                                    .n_sessions = N_SESSIONS,
                                    .snapshot_stride = -1,
                                    .keep_decoded = true,
                                    .snapshot_bytes =
                                        4 * (1000 + snapshot_slot_bytes(CONTEXT, FAKE_VOCAB))};
    fake.device = device;
    fake_reset_counts();
    assert_ok(engine_create(list, &weights, vocabulary, &options, &engine, &err), &err);
    for (int i = 0; i < N_SESSIONS; i++)
        assert_ok(calla_session_create(engine, &sessions[i], &err), &err);
}

static int fresh(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.n_blocks = 200, fake.slot_bytes = 1000, fake.grid = 1, fake.fail_after = -1;
    return 0;
}

/* Closing checks that no step is under way any more. */
static int done(void **state)
{
    (void)state;
    for (int i = 0; i < N_SESSIONS; i++) calla_session_free(sessions[i]);
    calla_engine_close(engine);
    memset(sessions, 0, sizeof sessions);
    engine = NULL;
    return 0;
}

static void start(int i)
{
    int32_t tokens[PROMPT];
    for (int t = 0; t < PROMPT; t++) tokens[t] = (t * 7 + i * 5) % 30;
    assert_ok(calla_session_sync(sessions[i], tokens, PROMPT, NULL, NULL, &err), &err);
}

static calla_sampled next_of(int i, const calla_sampling *sampling)
{
    calla_sampled out;
    assert_ok(calla_session_next(sessions[i], sampling, NULL, &out, &err), &err);
    return out;
}

static void assert_same_choice(const calla_sampled *a, const calla_sampled *b)
{
    assert_int_equal(a->token, b->token);
    assert_true(a->logprob == b->logprob);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top_tokens, b->top_tokens, (size_t)a->n_top * sizeof *a->top_tokens);
}

/* ---- the same tokens ---- */

static const calla_logit_bias bias[] = {{3, 2.0f}, {7, -INFINITY}};
static const uint32_t even[] = {0x55555555, 0x55555555};
static const calla_sampling many[] = {
    {0},
    {.temperature = 0.9f, .seed = 7, .n_top_logprobs = 3},
    {.temperature = 1.5f, .top_k = 9, .top_p = 0.8f, .seed = 1},
    {.presence_penalty = 2, .frequency_penalty = 1},
    {.temperature = 1, .repetition_penalty = 1.3f, .seed = 3},
    {.logit_bias = bias, .n_logit_bias = 2},
    {.token_mask = even},
};
enum { N_MANY = sizeof many / sizeof many[0], STEPS = 24 };

/* What is chosen when call k has parameters kind(k). */
static void choose(bool device, int (*kind)(int k), calla_sampled *out)
{
    open_backend(device);
    start(0);
    for (int k = 0; k < STEPS; k++) out[k] = next_of(0, &many[kind(k)]);
    done(NULL);
}

static void check_same(int (*kind)(int k))
{
    calla_sampled alone[STEPS], ahead[STEPS];
    choose(false, kind, alone);
    choose(true, kind, ahead);
    for (int k = 0; k < STEPS; k++) assert_same_choice(&alone[k], &ahead[k]);
}

static int constant;
static int always(int k)
{
    (void)k;
    return constant;
}
static int every_third(int k)
{
    return k % 3 == 2;
}
static int in_turn(int k)
{
    return k % N_MANY;
}
static int in_long_turns(int k)
{
    return k / 3 % N_MANY;
}

static void tokens_are_those_of_single_steps(void **state)
{
    (void)state;
    for (constant = 0; constant < N_MANY; constant++) check_same(always);
    check_same(every_third);
    check_same(in_turn);
    check_same(in_long_turns);
}

/* Steps under way after a token with these parameters, and whether they are submitted before the
 * one before them has ended. */
static void the_device_goes_on_where_it_can(void **state)
{
    (void)state;
    const struct {
        bool ahead, behind;
    } expected[N_MANY] = {{true, true},  {true, true},   {true, true},  {true, false},
                          {true, false}, {false, false}, {false, false}};
    for (int i = 0; i < N_MANY; i++) {
        open_backend(true);
        start(0);
        for (int k = 0; k < 10; k++) {
            next_of(0, &many[i]);
            assert_int_equal(fake.n_in_flight, expected[i].ahead);
            assert_int_equal(fake.n_steps, expected[i].ahead ? k + 1 : k);
        }
        assert_int_equal(fake.n_behind, expected[i].behind ? 9 : 0);
        done(NULL);
    }
    open_backend(false);
    start(0);
    for (int k = 0; k < 5; k++) next_of(0, &greedy);
    assert_int_equal(fake.n_steps, 4);
}

/* Sessions come and go between steps; each gets the tokens it gets alone. */
static void a_changing_batch_gives_the_tokens_of_each_alone(void **state)
{
    (void)state;
    static const int rounds[][N_SESSIONS + 1] = {
        /* how many, which */
        {1, 0}, {2, 0, 1}, {2, 0, 1}, {2, 1, 0}, {1, 1},       {3, 0, 1, 2}, {3, 0, 1, 2},
        {1, 2}, {1, 0},    {2, 0, 2}, {1, 0},    {3, 2, 1, 0}, {3, 2, 1, 0},
    };
    calla_sampled alone[N_SESSIONS][STEPS], out[N_SESSIONS];
    open_backend(false);
    for (int i = 0; i < N_SESSIONS; i++) {
        start(i);
        for (int k = 0; k < STEPS; k++) alone[i][k] = next_of(i, &many[i]);
    }
    done(NULL);
    open_backend(true);
    int n_got[N_SESSIONS] = {0};
    for (int i = 0; i < N_SESSIONS; i++) start(i);
    for (size_t r = 0; r < sizeof rounds / sizeof rounds[0]; r++) {
        calla_session *batch[N_SESSIONS];
        const calla_sampling *sampling[N_SESSIONS];
        int n = rounds[r][0];
        for (int i = 0; i < n; i++) {
            batch[i] = sessions[rounds[r][1 + i]];
            sampling[i] = &many[rounds[r][1 + i]];
        }
        assert_ok(calla_session_next_batch(batch, n, sampling, NULL, out, &err), &err);
        for (int i = 0; i < n; i++) {
            int which = rounds[r][1 + i];
            assert_same_choice(&out[i], &alone[which][n_got[which]++]);
        }
    }
}

/* ---- what happens beside a step ---- */

/* Stopped after any token, the session goes on with another text, or with its own. */
static void a_stopped_answer_can_be_left_and_continued(void **state)
{
    (void)state;
    open_backend(true);
    for (int stop = 1; stop < 5; stop++) {
        int32_t tokens[CONTEXT];
        int64_t n;
        calla_sync_stats stats;
        start(0);
        for (int k = 0; k < stop; k++) next_of(0, &greedy);
        memcpy(tokens, calla_session_tokens(sessions[0], &n), (size_t)(PROMPT + stop) * 4);
        assert_int_equal(n, PROMPT + stop);
        uint64_t hash = 0;
        for (int i = 0; i < n; i++)
            hash = fake_mix(hash, (uint64_t)tokens[i] | (i < PROMPT ? 0 : FAKE_DECODED));
        tokens[n++] = 1, tokens[n++] = 2;
        for (int i = 1; i <= 2; i++) hash = fake_mix(hash, (uint64_t)i);
        assert_ok(calla_session_sync(sessions[0], tokens, n, NULL, &stats, &err), &err);
        assert_int_equal(stats.n_reused, n - 2); /* the last token, too */
        assert_true(sessions[0]->sequence->hash == hash);
        next_of(0, &greedy);
        start(1);
        start(0); /* from the snapshot at the prompt's end */
        hash = 0;
        for (int i = 0; i < PROMPT; i++) hash = fake_mix(hash, (uint64_t)tokens[i]);
        assert_true(sessions[0]->sequence->hash == hash);
        assert_int_equal(fake.n_in_flight, 0);
    }
}

static void a_step_under_way_is_appended_kept_and_freed(void **state)
{
    (void)state;
    float logits[FAKE_VOCAB], expected[FAKE_VOCAB];
    open_backend(true);
    start(0);
    next_of(0, &greedy);
    assert_int_equal(fake.n_in_flight, 1);
    uint64_t hash = sessions[0]->sequence->hash; /* the device has its result already */
    assert_ok(calla_session_append(sessions[0], 4, NULL, logits, &err), &err);
    fake_logits(fake_mix(hash, 4 | FAKE_DECODED), expected);
    assert_memory_equal(logits, expected, sizeof expected);
    /* A snapshot holds all tokens, and the logits after them. */
    calla_sampled with[2], without;
    for (int k = 0; k < 2; k++) with[k] = next_of(0, &greedy);
    int64_t n;
    const int32_t *tokens = calla_session_tokens(sessions[0], &n);
    session_keep(sessions[0]);
    assert_int_equal(fake.n_in_flight, 0);
    assert_int_equal(fake.ends[fake.n_ends - 1], n);
    calla_sync_stats stats;
    assert_ok(calla_session_sync(sessions[1], tokens, n, NULL, &stats, &err), &err);
    assert_int_equal(stats.n_reused, n);
    without = next_of(1, &greedy);
    with[0] = next_of(0, &greedy);
    assert_same_choice(&with[0], &without);
    /* Another session's step goes on when one is freed; its own ends with it. */
    assert_int_equal(fake.n_in_flight, 1);
    calla_session_free(sessions[2]);
    assert_int_equal(fake.n_in_flight, 1);
    calla_session_free(sessions[0]);
    assert_int_equal(fake.n_in_flight, 0);
    sessions[0] = sessions[2] = NULL;
}

static void a_cancelled_call_leaves_the_step_under_way(void **state)
{
    (void)state;
    calla_sampled alone[STEPS], out;
    choose(false, every_third, alone);
    open_backend(true);
    start(0);
    for (int k = 0; k < STEPS; k++) {
        calla_flag stop = true;
        calla_control control = {.cancel = &stop};
        const calla_sampling *p = &many[every_third(k)];
        assert_error(calla_session_next(sessions[0], p, &control, &out, &err), CALLA_ERR_CANCELLED,
                     &err, "cancelled");
        assert_int_equal(sessions[0]->n_tokens, PROMPT + k);
        out = next_of(0, p);
        assert_same_choice(&out, &alone[k]);
    }
}

static void no_step_goes_beyond_the_context_or_the_blocks(void **state)
{
    (void)state;
    calla_sampled out;
    open_backend(true); /* the fake asserts positions */
    start(0);
    while (sessions[0]->n_tokens < CONTEXT) next_of(0, &greedy);
    assert_int_equal(fake.n_in_flight, 0);
    assert_error(calla_session_next(sessions[0], &greedy, NULL, &out, &err), CALLA_ERR_CONTEXT,
                 &err, "no room");
    done(NULL);
    fake.n_blocks = 2 * CONTEXT / FAKE_BLOCK; /* 30: two sessions, no snapshot */
    calla_sampled few[2][CONTEXT];
    for (int device = 0; device < 2; device++) {
        open_backend(device);
        for (int i = 0; i < 2; i++) start(i);
        for (int k = 0; k < CONTEXT - PROMPT; k++) {
            few[device][k] = next_of(0, &greedy);
            out = next_of(1, &greedy);
        }
        done(NULL);
    }
    for (int k = 0; k < CONTEXT - PROMPT; k++) assert_same_choice(&few[0][k], &few[1][k]);
}

static void a_profile_looks_at_one_step_at_a_time(void **state)
{
    (void)state;
    open_backend(true);
    start(0);
    next_of(0, &greedy);
    assert_int_equal(fake.n_in_flight, 1);
    calla_engine_set_profile(engine, true);
    assert_int_equal(fake.n_in_flight, 0);
    for (int k = 0; k < 3; k++) next_of(0, &greedy);
    assert_int_equal(fake.n_in_flight, 0);
    calla_engine_set_profile(engine, false);
    next_of(0, &greedy);
    assert_int_equal(fake.n_in_flight, 1);
}

/* ---- failures ---- */

/* Sessions 0 and 1 with a step under way that is going to fail. */
static void open_failing(void)
{
    calla_session *both[2] = {sessions[0], sessions[1]};
    const calla_sampling *sampling[2] = {&greedy, &greedy};
    calla_sampled out[2];
    for (int i = 0; i < N_SESSIONS; i++) start(i);
    for (int k = 0; k < 2; k++)
        assert_ok(calla_session_next_batch(both, 2, sampling, NULL, out, &err), &err);
    assert_int_equal(fake.n_in_flight, 1);
    fake.fail_step = true;
}

/* Each way to meet the failure reports it, and nothing is left of the broken states. */
static void a_step_that_fails_under_way_is_reported(void **state)
{
    (void)state;
    calla_sampled out[2];
    float logits[FAKE_VOCAB];
    open_backend(true);
    for (int way = 0; way < 5; way++) {
        open_failing();
        calla_session *both[2] = {sessions[0], sessions[1]};
        const calla_sampling *sampling[2] = {&greedy, way == 1 ? &many[1] : &greedy};
        calla_status status = CALLA_OK;
        if (way == 0) status = calla_session_next_batch(both, 2, sampling, NULL, out, &err);
        if (way == 1) status = calla_session_next_batch(both, 2, sampling, NULL, out, &err);
        if (way == 2) status = calla_session_next(sessions[1], &greedy, NULL, out, &err);
        if (way == 3) status = calla_session_append(sessions[0], 3, NULL, logits, &err);
        if (way == 4) { /* after others had to do with it */
            calla_engine_set_profile(engine, false);
            fake.fail_step = false;
            next_of(2, &greedy);
            session_reset(sessions[2]);
            status = calla_session_next(sessions[0], &greedy, NULL, out, &err);
        }
        assert_error(status, CALLA_ERR_DEVICE, &err, "made to fail");
        assert_int_equal(fake.n_in_flight, 0);
        for (int i = 0; i < 2; i++) assert_int_equal(both[i]->n_tokens, 0);
        fake.fail_step = false;
    }
    /* A prompt does not care. */
    open_failing();
    fake.fail_step = true;
    session_reset(sessions[0]);
    fake.fail_step = false;
    start(1);
    uint64_t hash = 0;
    for (int t = 0; t < PROMPT; t++) hash = fake_mix(hash, (uint64_t)((t * 7 + 5) % 30));
    assert_true(sessions[1]->sequence->hash == hash);
}

/* A step that cannot be submitted behind another, or before the token it follows is given. */
static void a_step_that_cannot_be_submitted_is_reported(void **state)
{
    (void)state;
    calla_sampled out;
    open_backend(true);
    for (int behind = 0; behind < 2; behind++) {
        start(0);
        if (behind) next_of(0, &greedy);
        fake.fail_submit = true;
        assert_error(calla_session_next(sessions[0], &greedy, NULL, &out, &err), CALLA_ERR_DEVICE,
                     &err, "could not be submitted");
        fake.fail_submit = false;
        assert_int_equal(sessions[0]->n_tokens, 0);
        assert_int_equal(fake.n_in_flight, 0);
    }
}

/* What the step behind a broken one gives is never seen. */
static void numbers_that_break_end_the_steps_behind_them(void **state)
{
    (void)state;
    calla_sampled out;
    open_backend(true);
    start(0);
    next_of(0, &greedy);
    next_of(0, &greedy);
    fake.nan_row = 1;
    next_of(0, &greedy); /* it was under way before */
    assert_error(calla_session_next(sessions[0], &greedy, NULL, &out, &err), CALLA_ERR_NUMERIC,
                 &err, "");
    assert_int_equal(sessions[0]->n_tokens, 0);
    assert_int_equal(fake.n_in_flight, 0);
    fake.nan_row = 0;
    start(0);
    next_of(0, &greedy);
}

/* One row of a batch breaks while the next step is under way: that session is empty, and each of
 * the others gets, asked alone, the tokens it would have got. */
static void a_broken_row_takes_no_other_session_with_it(void **state)
{
    (void)state;
    enum { N = 12, BROKEN_AT = 4 };
    static const calla_sampling warm = {.temperature = 1, .seed = 5};
    const calla_sampling *sampling[] = {&greedy, &greedy, &warm};
    calla_sampled alone[N_SESSIONS][N], out[N_SESSIONS];
    open_backend(false);
    for (int i = 0; i < N_SESSIONS; i++) {
        start(i);
        for (int k = 0; k < N; k++) alone[i][k] = next_of(i, sampling[i]);
    }
    done(NULL);
    open_backend(true);
    for (int i = 0; i < N_SESSIONS; i++) start(i);
    for (int k = 0; k < BROKEN_AT; k++) {
        if (k == BROKEN_AT - 1) fake.nan_row = 2; /* of the step submitted last */
        assert_ok(calla_session_next_batch(sessions, N_SESSIONS, sampling, NULL, out, &err), &err);
        for (int i = 0; i < N_SESSIONS; i++) assert_same_choice(&out[i], &alone[i][k]);
    }
    fake.nan_row = 0;
    assert_error(calla_session_next_batch(sessions, N_SESSIONS, sampling, NULL, out, &err),
                 CALLA_ERR_NUMERIC, &err, "");
    assert_int_equal(fake.n_in_flight, 0);
    assert_int_equal(sessions[1]->n_tokens, 0);
    int64_t n_steps = fake.n_steps;
    for (int i = 0; i < N_SESSIONS; i += 2) {
        assert_int_equal(sessions[i]->n_tokens, PROMPT + BROKEN_AT);
        for (int k = BROKEN_AT; k < N; k++) {
            calla_sampled got = next_of(i, sampling[i]);
            assert_same_choice(&got, &alone[i][k]);
        }
    }
    assert_true(fake.n_steps - n_steps <= 2 * (N - BROKEN_AT)); /* nothing was run again */
    start(1);
    next_of(1, &greedy);
}

/* The same, but the others ask for something else than before: what they have gone on with is not
 * what they want, so they say so and start again. */
static void a_session_that_owes_a_token_gives_no_other(void **state)
{
    (void)state;
    static const calla_sampling warm = {.temperature = 1, .seed = 5};
    const calla_sampling *sampling[] = {&greedy, &greedy};
    calla_sampled out[2];
    float logits[FAKE_VOCAB];
    open_backend(true);
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < 2; i++) start(i);
        assert_ok(calla_session_next_batch(sessions, 2, sampling, NULL, out, &err), &err);
        fake.nan_row = 2;
        assert_ok(calla_session_next_batch(sessions, 2, sampling, NULL, out, &err), &err);
        fake.nan_row = 0;
        assert_error(calla_session_next_batch(sessions, 2, sampling, NULL, out, &err),
                     CALLA_ERR_NUMERIC, &err, "");
        if (way == 0)
            assert_error(calla_session_next(sessions[0], &warm, NULL, out, &err), CALLA_ERR_NUMERIC,
                         &err, "another session");
        if (way == 1)
            assert_error(calla_session_append(sessions[0], 3, NULL, logits, &err),
                         CALLA_ERR_NUMERIC, &err, "another session");
        if (way < 2) assert_int_equal(sessions[0]->n_tokens, 0);
    }
    start(0); /* a sync needs nothing of what was before */
    calla_sampled got = next_of(0, &greedy);
    done(NULL);
    open_backend(false);
    start(0);
    calla_sampled expected = next_of(0, &greedy);
    assert_same_choice(&got, &expected);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, done)
    const struct CMUnitTest tests[] = {
        TEST(a_broken_row_takes_no_other_session_with_it),
        TEST(a_session_that_owes_a_token_gives_no_other),
        TEST(tokens_are_those_of_single_steps),
        TEST(the_device_goes_on_where_it_can),
        TEST(a_changing_batch_gives_the_tokens_of_each_alone),
        TEST(a_stopped_answer_can_be_left_and_continued),
        TEST(a_step_under_way_is_appended_kept_and_freed),
        TEST(a_cancelled_call_leaves_the_step_under_way),
        TEST(no_step_goes_beyond_the_context_or_the_blocks),
        TEST(a_profile_looks_at_one_step_at_a_time),
        TEST(a_step_that_fails_under_way_is_reported),
        TEST(a_step_that_cannot_be_submitted_is_reported),
        TEST(numbers_that_break_end_the_steps_behind_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
