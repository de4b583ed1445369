/* The kernel with all layers of a token (token.cu) against the kernels it stands for, which
 * test_decode.c compares with the C variants, and the one for several rows (token_rows.cu) against
 * it, bit for bit. Weights of the 35B's shape, all experts or few. */
#include "base/numbers.h"
#include "support/kernels.h"
#include "support/support.h"

#include "device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = TOKEN_HIDDEN,
    MOST_EXPERTS = TOKEN_MOST_EXPERTS,
    FEW_EXPERTS = 21, /* most blocks have none, one has one */
    N_LAYERS = 3,     /* gdn, attention, gdn */
    IN_ROWS = 12352,
    ATTENTION_ROWS = 9216,
    CHANNELS = 8192,
    SCAN = 32 * 128 * 128,
    LAYER_FLOATS = SCAN + 4 * CHANNELS,
    MOST_BLOCKS = 80,
    KV_LAYER = 4 * 256 * 256, /* halves of a layer in a block */
    ROW_BLOCKS = MOST_BLOCKS / STEP_ROWS,
    VOCAB = 9010,
};

static void copy(void *to, const void *from, size_t n)
{
    assert_cuda(cudaMemcpy(to, from, n, cudaMemcpyDeviceToDevice), "cudaMemcpy");
}
static float *random_floats(size_t n, fill_kind kind, uint64_t seed, float scale)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    fill(x, n, kind, seed);
    for (size_t i = 0; i < n; i++) x[i] *= scale;
    return x;
}
static float *random_on_device(size_t n, uint64_t seed, float scale, float offset)
{
    float *x = random_floats(n, FILL_NORMAL, seed, scale);
    for (size_t i = 0; i < n; i++) x[i] += offset;
    float *p = gpu_floats(x, n);
    free(x);
    return p;
}

/* ---- weights ---- */

/* Random rows: the same 1,024 again and again, times another scale. */
static void fill_rows(const w4_matrix *to, int64_t n, uint64_t seed, float scale, repack_rows order)
{
    const int32_t rows = 1024;
    matrix m = random_matrix(MATRIX_Q4, rows, to->cols, seed);
    size_t groups = (size_t)rows * (size_t)to->cols / 64, bytes = groups * 32;
    unsigned char *codes = gpu_bytes(m.codes, bytes);
    uint16_t *scales = malloc(groups * 2), *biases = malloc(groups * 2);
    uint16_t *device_scales = gpu_bytes(NULL, groups * 2);
    uint16_t *device_biases = gpu_bytes(NULL, groups * 2);
    for (int64_t first = 0, round = 0; first < n; first += rows, round++) {
        for (size_t i = 0; i < groups; i++) {
            float f = scale * (round % 2 ? -1.0f : 1.0f) / (float)(1 + (round + (int64_t)i) % 3);
            scales[i] = f32_to_bf16(bf16_to_f32(((const uint16_t *)m.scales)[i]) * f);
            biases[i] = f32_to_bf16(bf16_to_f32(((const uint16_t *)m.biases)[i]) * f);
        }
        assert_cuda(cudaMemcpy(device_scales, scales, groups * 2, cudaMemcpyHostToDevice),
                    "scales");
        assert_cuda(cudaMemcpy(device_biases, biases, groups * 2, cudaMemcpyHostToDevice),
                    "biases");
        repack_args a = {.blocks = (unsigned char *)(uintptr_t)to->blocks,
                         .codes = codes,
                         .scales = device_scales,
                         .biases = device_biases,
                         .cols = to->cols,
                         .first = first,
                         .n = n - first < rows ? n - first : rows,
                         .order = order};
        assert_cuda(launch_repack(&a, 0), "launch_repack");
        assert_cuda(cudaDeviceSynchronize(), "repack");
    }
    free(scales), free(biases);
    gpu_free(codes), gpu_free(device_scales), gpu_free(device_biases);
}

static w4_matrix random_w4(int32_t rows, int32_t cols, uint64_t seed, float scale)
{
    w4_matrix m = gpu_empty_w4(rows, cols);
    fill_rows(&m, rows, seed, scale, REPACK_PLAIN);
    return m;
}
/* Gate and up of n experts. */
static w4_matrix random_inner(int32_t n, uint64_t seed)
{
    w4_matrix m = gpu_empty_w4(n * 2 * TOKEN_WIDTH, HIDDEN);
    fill_rows(&m, n * TOKEN_WIDTH, seed, 0.05f, REPACK_GATE);
    fill_rows(&m, n * TOKEN_WIDTH, seed + 1, 0.05f, REPACK_UP);
    m.rows = 2 * TOKEN_WIDTH;
    return m;
}

typedef struct model {
    w4_matrix gdn_in, attention_in, out, inner, outer, shared_inner, shared_outer, head;
    w8_matrix router;
    float *input_norm, *post_norm, *taps, *neg_exp_a, *dt_bias, *gdn_norm, *q_norm, *k_norm;
    /* Of a step: [3] reference, the kernel, the kernel again. */
    float *x[3], *states[3];
    unsigned char *kv[3];
    float *start_x, *start_states;
    unsigned char *start_kv;
    int32_t *table;
    step_input *input;
    float *projected, *mixed, *logits, *h, *part_out, *part_max, *part_sum;
    token_mail *mail;
    unsigned *arrived, *barrier;
    float *final_norm, *vocab[3];
    int32_t *bad;
    token_layer *layers;
    /* Of several rows: [2] one after another, together. */
    float *rows_x[2], *rows_states[2], *rows_vocab[2];
    float *start_rows_x, *start_rows_states;
    int32_t *rows_table;
} model;

static model m;
static int32_t n_experts =
    MOST_EXPERTS; /* of a step: the first ones; the gate's row is behind them */

static void make_router(void)
{
    matrix r = random_matrix(MATRIX_Q8, MOST_EXPERTS + 1, HIDDEN, 3);
    size_t groups = (size_t)(MOST_EXPERTS + 1) * HIDDEN / 64;
    uint32_t *pairs = gpu_bytes(NULL, groups * 4);
    assert_cuda(launch_pair(gpu_bytes(r.scales, groups * 2), gpu_bytes(r.biases, groups * 2),
                            (int64_t)groups, pairs, 0),
                "launch_pair");
    m.router = (w8_matrix){gpu_bytes(r.codes, groups * 64), pairs, MOST_EXPERTS + 1, HIDDEN};
}

static void make_layers(void)
{
    token_layer layers[N_LAYERS];
    for (int i = 0; i < N_LAYERS; i++) {
        bool attention = i == 1;
        layers[i] = (token_layer){.in = attention ? m.attention_in.blocks : m.gdn_in.blocks,
                                  .out = m.out.blocks,
                                  .inner = m.inner.blocks,
                                  .outer = m.outer.blocks,
                                  .shared_inner = m.shared_inner.blocks,
                                  .shared_outer = m.shared_outer.blocks,
                                  .router = m.router.codes,
                                  .router_pairs = m.router.pairs,
                                  .input_norm = m.input_norm,
                                  .post_norm = m.post_norm,
                                  .constants = {m.taps, m.neg_exp_a, m.dt_bias, m.gdn_norm},
                                  .is_attention = attention,
                                  .mixer_index = i / 2};
        if (attention) layers[i].constants[0] = m.q_norm, layers[i].constants[1] = m.k_norm;
    }
    m.layers = gpu_bytes(layers, sizeof layers);
}

/* Rows have a state each, and ROW_BLOCKS blocks of KV. */
static void make_rows(void)
{
    const size_t states = (size_t)STEP_ROWS * 2 * LAYER_FLOATS;
    int32_t table[STEP_ROWS][MOST_BLOCKS];
    for (int i = 0; i < STEP_ROWS; i++)
        for (int j = 0; j < MOST_BLOCKS; j++)
            table[i][j] = j < ROW_BLOCKS ? ((i * ROW_BLOCKS + j) * 7 + 3) % MOST_BLOCKS : -1;
    m.rows_table = gpu_bytes(table, sizeof table);
    m.start_rows_x = random_on_device((size_t)STEP_ROWS * HIDDEN, 24, 1, 0);
    m.start_rows_states = random_on_device(states, 25, 0.1f, 0);
    for (int i = 0; i < 2; i++) {
        m.rows_x[i] = gpu_floats(NULL, (size_t)STEP_ROWS * HIDDEN);
        m.rows_states[i] = gpu_floats(NULL, states);
        m.rows_vocab[i] = gpu_floats(NULL, (size_t)STEP_ROWS * VOCAB);
    }
}

static int make_model(void **state)
{
    (void)state;
    const size_t kv_halves = (size_t)MOST_BLOCKS * KV_LAYER, parts = 16 * TOKEN_KV_PARTS;
    m.gdn_in = random_w4(IN_ROWS, HIDDEN, 1, 0.05f);
    m.attention_in = random_w4(ATTENTION_ROWS, HIDDEN, 2, 0.05f);
    m.out = random_w4(HIDDEN, 4096, 4, 0.02f);
    m.inner = random_inner(MOST_EXPERTS, 5);
    m.outer = random_w4(MOST_EXPERTS * HIDDEN, TOKEN_WIDTH, 7, 0.1f);
    m.outer.rows = HIDDEN;
    m.shared_inner = random_inner(1, 8);
    m.shared_outer = random_w4(HIDDEN, TOKEN_WIDTH, 10, 0.1f);
    make_router();
    m.head = random_w4(VOCAB, HIDDEN, 22, 0.05f);
    m.final_norm = random_on_device(HIDDEN, 23, 0.3f, 1);
    for (int i = 0; i < 3; i++) m.vocab[i] = gpu_floats(NULL, VOCAB);
    m.input_norm = random_on_device(HIDDEN, 11, 0.3f, 1);
    m.post_norm = random_on_device(HIDDEN, 12, 0.3f, 1);
    m.taps = random_on_device(4 * CHANNELS, 13, 0.5f, 0);
    m.neg_exp_a = random_on_device(32, 14, 0.05f, -0.2f);
    m.dt_bias = random_on_device(32, 15, 1, 0);
    m.gdn_norm = random_on_device(128, 16, 0.3f, 1);
    m.q_norm = random_on_device(256, 17, 0.3f, 1);
    m.k_norm = random_on_device(256, 18, 0.3f, 1);
    m.start_x = random_on_device(HIDDEN, 19, 1, 0);
    m.start_states = random_on_device((size_t)2 * LAYER_FLOATS, 20, 0.1f, 0);
    uint16_t *halves = malloc(kv_halves * 2);
    float *wide = random_floats(KV_LAYER, FILL_NORMAL, 21, 1);
    for (size_t i = 0; i < MOST_BLOCKS; i++) {
        for (size_t k = 0; k < 1000; k++) wide[(k * 7919 + i * 131) % KV_LAYER] *= -0.9f;
        f32_to_f16_c(wide, KV_LAYER, halves + i * KV_LAYER);
    }
    m.start_kv = gpu_bytes(halves, kv_halves * 2);
    free(halves), free(wide);
    for (int i = 0; i < 3; i++) {
        m.x[i] = gpu_floats(NULL, HIDDEN);
        m.states[i] = gpu_floats(NULL, (size_t)2 * LAYER_FLOATS);
        m.kv[i] = gpu_bytes(NULL, kv_halves * 2);
    }
    int32_t table[MOST_BLOCKS];
    for (int i = 0; i < MOST_BLOCKS; i++) table[i] = (i * 7 + 3) % MOST_BLOCKS;
    m.table = gpu_bytes(table, sizeof table);
    m.input = gpu_bytes(NULL, sizeof(step_input));
    m.projected = gpu_floats(NULL, (size_t)STEP_ROWS * IN_ROWS);
    m.mixed = gpu_floats(NULL, 4096);
    m.logits = gpu_floats(NULL, MOST_EXPERTS + 1);
    m.h = gpu_floats(NULL, 9 * TOKEN_WIDTH);
    m.part_out = gpu_floats(NULL, STEP_ROWS * parts * 256);
    m.part_max = gpu_floats(NULL, STEP_ROWS * parts);
    m.part_sum = gpu_floats(NULL, STEP_ROWS * parts);
    m.mail = gpu_bytes(NULL, STEP_ROWS * sizeof *m.mail);
    assert_cuda(cudaMemset(m.mail, 0, STEP_ROWS * sizeof *m.mail), "cudaMemset");
    unsigned zeros[16] = {0};
    m.arrived = gpu_bytes(zeros, sizeof zeros);
    m.barrier = gpu_bytes(zeros, sizeof zeros);
    m.bad = gpu_bytes(NULL, STEP_ROWS * 4);
    make_layers();
    make_rows();
    return 0;
}

/* ---- a step ---- */

static store_view store_of(int which)
{
    return (store_view){.states = m.states[which],
                        .state_floats = 2 * LAYER_FLOATS,
                        .layer_floats = LAYER_FLOATS,
                        .window_offset = SCAN,
                        .kv = m.kv[which],
                        .block_bytes = KV_LAYER * 2,
                        .layer_bytes = KV_LAYER * 2,
                        .tables = m.table,
                        .max_blocks = MOST_BLOCKS};
}

static gemv_args product(const w4_matrix *w, gemv_input input, const float *x, const float *factor,
                         float *y, int layer)
{
    return (gemv_args){.w = *w,
                       .input = input,
                       .n = 1,
                       .x = x,
                       .factor = factor,
                       .eps = 1e-6f,
                       .gate = m.projected + CHANNELS,
                       .y = y,
                       .bad_layer = m.bad,
                       .layer = layer};
}

/* Steps by launches of their own; or added to a chain. */
static void step_gemv(const gemv_args *a, chain_args *chain)
{
    if (chain)
        chain_add_gemv(chain, a, 132);
    else
        assert_cuda(launch_gemv(a, 132, 0), "launch_gemv");
}
static void step_gdn(const gdn_step_args *a, chain_args *chain)
{
    if (chain)
        chain_add_gdn(chain, a);
    else
        assert_cuda(launch_gdn_step(a, 0), "launch_gdn_step");
}

static void mix_by_kernels(int which, int layer, chain_args *chain)
{
    bool attention = layer == 1;
    store_view store = store_of(which);
    gemv_args in = product(attention ? &m.attention_in : &m.gdn_in, GEMV_INPUT_NORM, m.x[which],
                           m.input_norm, m.projected, layer);
    gemv_args out = product(&m.out, attention ? GEMV_INPUT_PLAIN : GEMV_INPUT_GATED_NORM, m.mixed,
                            m.gdn_norm, m.x[which], layer);
    step_gemv(&in, chain);
    if (attention) {
        attention_step_args a = {.store = store,
                                 .input = m.input,
                                 .n = 1,
                                 .query_heads = 16,
                                 .kv_heads = 2,
                                 .projected = m.projected,
                                 .stride = ATTENTION_ROWS,
                                 .q_norm = m.q_norm,
                                 .k_norm = m.k_norm,
                                 .eps = 1e-6f,
                                 .part_out = m.part_out,
                                 .part_max = m.part_max,
                                 .part_sum = m.part_sum,
                                 .arrived = m.arrived,
                                 .out = m.mixed};
        assert_cuda(launch_attention_step(&a, 0), "launch_attention_step");
    } else {
        gdn_step_args a = {.store = store,
                           .input = m.input,
                           .n = 1,
                           .gdn_index = layer / 2,
                           .key_heads = 16,
                           .value_heads = 32,
                           .projected = m.projected,
                           .stride = IN_ROWS,
                           .taps = m.taps,
                           .neg_exp_a = m.neg_exp_a,
                           .dt_bias = m.dt_bias,
                           .out = m.mixed};
        step_gdn(&a, chain);
    }
    step_gemv(&out, chain);
}

static void moe_by_kernels(int which, int layer, chain_args *chain)
{
    w8_matrix router = m.router;
    router.rows = n_experts + 1;
    router_args r = {.w = router,
                     .n = 1,
                     .x = m.x[which],
                     .factor = m.post_norm,
                     .eps = 1e-6f,
                     .logits = m.logits,
                     .bad_layer = m.bad,
                     .layer = layer};
    expert_args e = {.inner = m.inner,
                     .outer = m.outer,
                     .shared_inner = m.shared_inner,
                     .shared_outer = m.shared_outer,
                     .inner_bytes = w4_bytes(2 * TOKEN_WIDTH, HIDDEN),
                     .outer_bytes = w4_bytes(HIDDEN, TOKEN_WIDTH),
                     .n_experts = n_experts,
                     .k = TOKEN_CHOSEN,
                     .n = 1,
                     .x = m.x[which],
                     .factor = m.post_norm,
                     .eps = 1e-6f,
                     .logits = m.logits,
                     .h = m.h,
                     .x_out = m.x[which]};
    if (chain) {
        chain_add_router(chain, &r);
        chain_add_experts(chain, &e);
        return;
    }
    assert_cuda(launch_router(&r, 0), "launch_router");
    assert_cuda(launch_expert_inner(&e, 0), "launch_expert_inner");
    assert_cuda(launch_expert_outer(&e, 0), "launch_expert_outer");
}

static void run_token(int which, int first, int end, bool head)
{
    token_args a = {.layers = m.layers,
                    .first = first,
                    .end = end,
                    .n_experts = n_experts,
                    .eps = 1e-6f,
                    .store = store_of(which),
                    .input = m.input,
                    .x = m.x[which],
                    .head = m.head.blocks,
                    .final_norm = m.final_norm,
                    .logits = head ? m.vocab[which] : NULL,
                    .n_vocab = VOCAB,
                    .mail = m.mail,
                    .projected = m.projected,
                    .part_out = m.part_out,
                    .part_max = m.part_max,
                    .part_sum = m.part_sum,
                    .barrier = m.barrier,
                    .bad_layer = m.bad};
    assert_cuda(launch_token(&a, 0), "launch_token");
    assert_cuda(cudaDeviceSynchronize(), "token");
}

static void set_position(int32_t position)
{
    step_input input;
    memset(&input, 0, sizeof input);
    input.rows[0].position = position;
    for (int j = 0; j < 32; j++) {
        input.rows[0].cosines[j] = (float)cos(position / (j + 1.0));
        input.rows[0].sines[j] = (float)sin(position / (j + 1.0));
    }
    assert_cuda(cudaMemcpy(m.input, &input, sizeof input, cudaMemcpyHostToDevice), "input");
    const int32_t bad = 1000;
    assert_cuda(cudaMemcpy(m.bad, &bad, 4, cudaMemcpyHostToDevice), "bad");
    for (int i = 0; i < 3; i++) {
        copy(m.x[i], m.start_x, HIDDEN * 4);
        copy(m.states[i], m.start_states, (size_t)2 * LAYER_FLOATS * 4);
        copy(m.kv[i], m.start_kv, (size_t)MOST_BLOCKS * KV_LAYER * 2);
    }
}

/* In the largest norm. */
static void assert_close(const float *value, const float *expected, size_t n, double bound,
                         const char *what)
{
    double largest = 0, worst = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)value[i] - (double)expected[i]);
        if (!(e <= bound * largest))
            fail_msg("%s: [%zu] is %g, not %g (largest %g)", what, i, (double)value[i],
                     (double)expected[i], largest);
        worst = fmax(worst, e);
    }
    printf("%s: %.1e\n", what, worst / largest);
}

static void compare_floats(const float *value, const float *expected, size_t n, double bound,
                           const char *what)
{
    float *a = malloc(n * 4), *b = malloc(n * 4);
    gpu_fetch(a, value, n * 4);
    gpu_fetch(b, expected, n * 4);
    assert_close(a, b, n, bound, what);
    free(a), free(b);
}
static void compare_bits(const void *value, const void *expected, size_t n, const char *what)
{
    char *a = malloc(n), *b = malloc(n);
    gpu_fetch(a, value, n);
    gpu_fetch(b, expected, n);
    if (memcmp(a, b, n) != 0) fail_msg("%s: other bits", what);
    free(a), free(b);
}

static void compare_kv(int which, const char *what)
{
    const size_t n = (size_t)MOST_BLOCKS * KV_LAYER;
    uint16_t *a = malloc(n * 2), *b = malloc(n * 2);
    float *x = malloc(n * 4), *y = malloc(n * 4);
    gpu_fetch(a, m.kv[which], n * 2);
    gpu_fetch(b, m.kv[0], n * 2);
    for (size_t i = 0; i < n; i++) x[i] = f16_to_f32(a[i]), y[i] = f16_to_f32(b[i]);
    assert_close(x, y, n, 1e-3, what);
    free(a), free(b), free(x), free(y);
}

static void check_step(int32_t position)
{
    set_position(position);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        mix_by_kernels(0, layer, NULL);
        moe_by_kernels(0, layer, NULL);
        run_token(1, layer, layer + 1, false);
        compare_floats(m.x[1], m.x[0], HIDDEN, 2e-3,
                       text("layer %d at %d, x", layer, (int)position));
        copy(m.x[1], m.x[0], HIDDEN * 4); /* no layer answers for the ones before it */
    }
    compare_floats(m.states[1], m.states[0], (size_t)2 * LAYER_FLOATS, 1e-5,
                   text("states at %d", (int)position));
    compare_kv(1, text("KV at %d", (int)position));
    /* All layers in one kernel: close to the others, and the same bits each time. */
    run_token(2, 0, N_LAYERS, true);
    compare_floats(m.x[2], m.x[0], HIDDEN, 4e-3, text("all layers at %d", (int)position));
    gemv_args head = product(&m.head, GEMV_INPUT_NORM, m.x[2], m.final_norm, m.vocab[0], N_LAYERS);
    assert_cuda(launch_gemv(&head, 132, 0), "launch_gemv");
    compare_floats(m.vocab[2], m.vocab[0], VOCAB, 1e-4, text("head at %d", (int)position));
    set_position(position);
    for (int i = 1; i < 3; i++) run_token(i, 0, N_LAYERS, i == 2);
    run_token(1, N_LAYERS, N_LAYERS, true);
    compare_bits(m.x[2], m.x[1], HIDDEN * 4, "x again");
    compare_bits(m.vocab[2], m.vocab[1], VOCAB * 4, "head again");
    compare_bits(m.states[2], m.states[1], (size_t)2 * LAYER_FLOATS * 4, "states again");
    compare_bits(m.kv[2], m.kv[1], (size_t)MOST_BLOCKS * KV_LAYER * 2, "KV again");
    int32_t bad;
    gpu_fetch(&bad, m.bad, 4);
    assert_int_equal(bad, 1000);
}

static void test_steps(void **state)
{
    (void)state;
    static const int32_t positions[] = {0, 2, 5, 15, 16, 300, 1000, 16383, 16384, 20000};
    for (int i = 0; i < 10; i++) {
        n_experts = i % 2 ? FEW_EXPERTS : MOST_EXPERTS;
        check_step(positions[i]);
    }
}

/* ---- several rows ---- */

/* Row i of a step into the memory of `which`. */
static token_args row_args(int which, int i, int first, int end, bool head)
{
    const size_t parts = (size_t)i * 16 * TOKEN_KV_PARTS;
    store_view store = store_of(which);
    store.states = m.rows_states[which];
    store.tables = m.rows_table;
    return (token_args){.layers = m.layers,
                        .first = first,
                        .end = end,
                        .row = i,
                        .n_experts = n_experts,
                        .eps = 1e-6f,
                        .store = store,
                        .input = m.input,
                        .x = m.rows_x[which] + (size_t)i * HIDDEN,
                        .head = m.head.blocks,
                        .final_norm = m.final_norm,
                        .logits = head ? m.rows_vocab[which] + (size_t)i * VOCAB : NULL,
                        .n_vocab = VOCAB,
                        .mail = m.mail + i,
                        .projected = m.projected + (size_t)i * ATTENTION_ROWS,
                        .part_out = m.part_out + parts * 256,
                        .part_max = m.part_max + parts,
                        .part_sum = m.part_sum + parts,
                        .barrier = m.barrier,
                        .bad_layer = m.bad + i};
}

/* Layers [first, end) of n rows, one after another (which = 0) or together. */
static void run_rows(int which, int n, int first, int end, bool head)
{
    token_rows_args a = {.n = n, .mail = m.mail};
    for (int i = 0; i < n; i++) {
        a.rows[i] = row_args(which, i, first, end, head);
        if (which == 0) assert_cuda(launch_token(&a.rows[i], 0), "launch_token");
    }
    if (which == 1) assert_cuda(launch_token_rows(&a, 0), "launch_token_rows");
    assert_cuda(cudaDeviceSynchronize(), "rows");
}

static void start_rows(const int32_t positions[STEP_ROWS])
{
    static step_input input;
    int32_t bad[STEP_ROWS];
    for (int i = 0; i < STEP_ROWS; i++) {
        step_row *row = &input.rows[i];
        *row = (step_row){.slot = i, .state = STEP_ROWS - 1 - i, .position = positions[i]};
        for (int j = 0; j < 32; j++) {
            row->cosines[j] = (float)cos(positions[i] / (j + 1.0));
            row->sines[j] = (float)sin(positions[i] / (j + 1.0));
        }
        bad[i] = 1000;
    }
    assert_cuda(cudaMemcpy(m.input, &input, sizeof input, cudaMemcpyHostToDevice), "input");
    assert_cuda(cudaMemcpy(m.bad, bad, sizeof bad, cudaMemcpyHostToDevice), "bad");
    for (int i = 0; i < 2; i++) {
        copy(m.rows_x[i], m.start_rows_x, (size_t)STEP_ROWS * HIDDEN * 4);
        copy(m.rows_states[i], m.start_rows_states, (size_t)STEP_ROWS * 2 * LAYER_FLOATS * 4);
        copy(m.kv[i], m.start_kv, (size_t)MOST_BLOCKS * KV_LAYER * 2);
    }
}

static void compare_rows(int n, const char *when)
{
    const size_t rows = (size_t)n;
    compare_bits(m.rows_x[1], m.rows_x[0], rows * HIDDEN * 4, text("x of %d, %s", n, when));
    compare_bits(m.rows_states[1], m.rows_states[0], (size_t)STEP_ROWS * 2 * LAYER_FLOATS * 4,
                 text("states of %d, %s", n, when));
    compare_bits(m.kv[1], m.kv[0], (size_t)MOST_BLOCKS * KV_LAYER * 2,
                 text("KV of %d, %s", n, when));
}

/* A row of several has the bits that it has alone. */
static void test_rows(void **state)
{
    (void)state;
    static const int sizes[] = {2, 8, 3, 5, 4, 1};
    static const int32_t positions[STEP_ROWS] = {300, 0, 2, 15, 1000, 16, 2047, 2559};
    for (int k = 0; k < 6; k++) {
        int32_t turned[STEP_ROWS];
        for (int i = 0; i < STEP_ROWS; i++) turned[i] = positions[(i + k) % STEP_ROWS];
        n_experts = k % 2 ? FEW_EXPERTS : MOST_EXPERTS;
        for (int layer = 0; layer < N_LAYERS; layer++) {
            start_rows(turned);
            for (int i = 0; i < 2; i++) run_rows(i, sizes[k], layer, layer + 1, false);
            compare_rows(sizes[k], text("layer %d", layer));
        }
        for (int again = 0; again < 50; again++) { /* blocks meet in another order each time */
            start_rows(turned);
            for (int i = 0; i < 2; i++) run_rows(i, sizes[k], 0, N_LAYERS, true);
            compare_bits(m.rows_x[1], m.rows_x[0], (size_t)sizes[k] * HIDDEN * 4,
                         text("x of %d, all layers, time %d", sizes[k], again));
            compare_bits(m.rows_vocab[1], m.rows_vocab[0], (size_t)sizes[k] * VOCAB * 4, "head");
        }
        compare_rows(sizes[k], "all layers");
    }
}

/* A row that is not finite is told, and changes no other. */
static void test_row_not_finite(void **state)
{
    (void)state;
    enum { ROWS = 6, BAD = 2 };
    static const int32_t positions[STEP_ROWS] = {3, 40, 7, 300, 5, 600, 0, 0};
    const float infinity = INFINITY;
    int32_t bad[ROWS];
    start_rows(positions);
    assert_cuda(cudaMemcpy(m.rows_x[1] + BAD * HIDDEN + 77, &infinity, 4, cudaMemcpyHostToDevice),
                "x");
    for (int i = 0; i < 2; i++) run_rows(i, ROWS, 0, N_LAYERS, true);
    gpu_fetch(bad, m.bad, sizeof bad);
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(bad[i], i == BAD ? 0 : 1000);
        if (i == BAD) continue;
        compare_bits(m.rows_x[1] + i * HIDDEN, m.rows_x[0] + i * HIDDEN, HIDDEN * 4, "x");
        compare_bits(m.rows_vocab[1] + i * VOCAB, m.rows_vocab[0] + i * VOCAB, VOCAB * 4, "head");
    }
}

/* The first layer whose input is not finite is told. */
static void test_not_finite(void **state)
{
    (void)state;
    const float infinity = INFINITY;
    int32_t bad;
    for (int layer = 0; layer < 2; layer++) {
        set_position(40);
        assert_cuda(cudaMemcpy(m.x[1] + 77, &infinity, 4, cudaMemcpyHostToDevice), "x");
        run_token(1, layer, N_LAYERS, true);
        gpu_fetch(&bad, m.bad, 4);
        assert_int_equal(bad, layer);
    }
}

/* Two layers and a part of the third, as kernels of their own or as one. */
static void run_steps(int which, chain_args *chain)
{
    for (int layer = 0; layer < N_LAYERS; layer += 2) {
        mix_by_kernels(which, layer, chain);
        moe_by_kernels(which, layer, chain);
    }
    gemv_args in =
        product(&m.attention_in, GEMV_INPUT_NORM, m.x[which], m.input_norm, m.projected, N_LAYERS);
    step_gemv(&in, chain);
}

/* The chain (chain.cu) has the bits of the kernels it stands for, every time. */
static void test_chain(void **state)
{
    (void)state;
    const size_t states = (size_t)2 * LAYER_FLOATS * 4;
    float *projected = gpu_floats(NULL, ATTENTION_ROWS);
    unsigned *counters = gpu_bytes(NULL, CHAIN_STEPS * sizeof *counters);
    for (int32_t position = 0; position < 20; position++) {
        n_experts = position % 2 ? FEW_EXPERTS : MOST_EXPERTS;
        set_position(position);
        run_steps(0, NULL);
        assert_cuda(cudaDeviceSynchronize(), "kernels");
        copy(projected, m.projected, ATTENTION_ROWS * 4);
        chain_args chain = {.counters = counters};
        run_steps(1, &chain);
        assert_int_equal(chain.n_steps, 13);
        assert_cuda(cudaMemset(counters, 0, CHAIN_STEPS * sizeof *counters), "cudaMemset");
        assert_cuda(launch_chain(&chain, 0), "launch_chain");
        assert_cuda(cudaDeviceSynchronize(), "chain");
        compare_bits(m.x[1], m.x[0], HIDDEN * 4, text("x at %d", (int)position));
        compare_bits(m.states[1], m.states[0], states, text("states at %d", (int)position));
        compare_bits(m.projected, projected, ATTENTION_ROWS * 4, text("q at %d", (int)position));
    }
    n_experts = MOST_EXPERTS;
}

/* Of experts with the same logit the lowest are chosen. The router is another one afterwards. */
static void test_equal_logits(void **state)
{
    (void)state;
    enum { DIFFERENT = 3, PAIR_BYTES = HIDDEN / 64 * 4 };
    unsigned char *codes = (unsigned char *)(uintptr_t)m.router.codes;
    unsigned char *pairs = (unsigned char *)(uintptr_t)m.router.pairs;
    for (int e = DIFFERENT; e < MOST_EXPERTS; e++) {
        /* Six of either of two logits, so that the eight are of several; all others of one. */
        const int like = e < 5 * DIFFERENT ? e / 5 : 0;
        copy(codes + (size_t)e * HIDDEN, codes + (size_t)like * HIDDEN, HIDDEN);
        copy(pairs + (size_t)e * PAIR_BYTES, pairs + (size_t)like * PAIR_BYTES, PAIR_BYTES);
    }
    for (int i = 0; i < 2; i++) {
        n_experts = i ? FEW_EXPERTS : MOST_EXPERTS;
        check_step(40 + i);
    }
}

int main(void)
{
    int n_sms = 0;
    if (!gpu_begin() ||
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) {
        printf("SKIP: no CUDA device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),          cmocka_unit_test(test_steps),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_rows),
        cmocka_unit_test(test_row_not_finite), cmocka_unit_test(test_equal_logits)};
    const bool whole = token_fits_device(n_sms) && token_rows_fit_device(n_sms);
    return _cmocka_run_group_tests("token", tests, whole ? 6 : 1, make_model, NULL);
}
