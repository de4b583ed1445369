/* What is not finite inside the model is reported, in whatever tensor it begins. */
#include "model/inventory.h"
#include "support/oracle.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = ORACLE_V };

/* oracle-a with copies of its layers, to be spoilt. */
typedef struct broken_model {
    model_weights weights;
    layer_weights layers[ORACLE_L];
    void *copy; /* of what was spoilt */
} broken_model;

static void begin(broken_model *m)
{
    m->weights = oracle_mlx4;
    memcpy(m->layers, oracle_mlx4.layers, sizeof m->layers);
    m->weights.layers = m->layers;
    m->copy = NULL;
}

/* A reported step leaves a sequence that only a reset makes usable; a reported prefill leaves it
 * where it was. */
static void check_reported(const model_weights *weights, const char *isa, const char *what)
{
    backend_options options = {
        .isa = isa, .n_threads = 1, .n_ctx = 16, .n_sequences = 1, .prefill_chunk = 16};
    backend *b = oracle_open_with(weights, &options);
    backend_sequence *s = oracle_create(b);
    float logits[V];
    calla_error err;
    if (oracle_try_prefill(b, s, oracle_ids, 10, LOGITS_LAST, logits, NULL, &err) !=
        CALLA_ERR_NUMERIC)
        fail_msg("%s: %s: prefill reports nothing", isa, what);
    assert_int_equal(test_ops()->sequence_length(b, s), 0);
    step_request request = {.sequence = s, .token = oracle_ids[0]};
    step_result result;
    if (oracle_try_step(b, &request, 1, &result, NULL, &err) != CALLA_ERR_NUMERIC)
        fail_msg("%s: %s: a step reports nothing", isa, what);
    assert_int_equal(test_ops()->sequence_length(b, s), 1);
    test_ops()->sequence_reset(b, s);
    assert_int_equal(test_ops()->sequence_length(b, s), 0);
    test_ops()->close(b);
}

/* The message says where. */
static void test_place(void **state)
{
    (void)state;
    broken_model m;
    static float factors[ORACLE_D];
    for (int i = 0; i < ORACLE_D; i++) factors[i] = i == 5 ? INFINITY : 1;
    begin(&m);
    m.layers[2].input_norm = (norm_view){.weight = {factors, ORACLE_D, true}};
    backend_options options = oracle_options(test_plain_isa());
    backend *b = oracle_open_with(&m.weights, &options);
    backend_sequence *s = oracle_create(b);
    float logits[V];
    calla_error err;
    assert_error(oracle_try_prefill(b, s, oracle_ids, 10, LOGITS_LAST, logits, NULL, &err),
                 CALLA_ERR_NUMERIC, &err, "layer 2 of 4");
    assert_non_null(strstr(err.message, "position 0"));
    step_request request = {.sequence = s, .token = 1};
    step_result result;
    assert_error(oracle_try_step(b, &request, 1, &result, NULL, &err), CALLA_ERR_NUMERIC, &err,
                 "layer 2 of 4");
    test_ops()->close(b);
}

/* ---- every tensor ---- */

/* One scale of one row in each of n matrices of a stack that are `row_stride` rows apart. */
static void spoil_scales(broken_model *m, matrix *first, int32_t n, int64_t row_stride,
                         uint16_t value)
{
    size_t n_groups = (size_t)first->cols / QUANT_GROUP;
    size_t n_scales = ((size_t)row_stride * (size_t)(n - 1) + (size_t)first->rows) * n_groups;
    uint16_t *copy = malloc(n_scales * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, first->scales, n_scales * sizeof *copy);
    for (int32_t e = 0; e < n; e++)
        copy[(size_t)(row_stride * e + first->rows / 2) * n_groups] = value;
    m->copy = copy;
    first->scales = copy;
}

static void spoil_vector(broken_model *m, vector_view *v, uint16_t value)
{
    uint16_t *copy = malloc((size_t)v->n * sizeof *copy);
    assert_non_null(copy);
    for (int32_t i = 0; i < v->n; i++) copy[i] = f32_to_bf16(vector_at(v, i));
    copy[v->n / 2] = value;
    m->copy = copy;
    *v = (vector_view){copy, v->n, false};
}

static void spoil(broken_model *m, const part *p, layer_weights *layer, uint16_t value)
{
    void *view = (unsigned char *)layer + p->offset;
    expert_matrices *experts = view;
    norm_view *norm = view;
    switch (p->kind) {
    case PART_MATRIX:
    case PART_EMBEDDING:
        spoil_scales(m, view, 1, 0, value);
        break;
    case PART_EXPERTS:
        spoil_scales(m, &experts->first, m->weights.config.n_experts, experts->row_stride, value);
        break;
    case PART_NORM:
        spoil_vector(m, &norm->weight, value);
        break;
    case PART_VECTOR:
    case PART_CONV:
        spoil_vector(m, view, value);
        break;
    }
}

/* A NaN or an infinity in one element of one tensor, gates and router included: whatever turns it
 * into a harmless number on its way (a sigmoid, a clamp, a maximum) hides a wrong result. */
static void test_every_tensor(void **state)
{
    (void)state;
    static const struct {
        uint16_t bits;
        const char *name;
    } values[] = {{0x7fc0, "NaN"}, {0x7f80, "infinity"}, {0xff80, "-infinity"}};
    const model_config *c = &oracle_mlx4.config;
    for (const char *const *isa = test_isas(); *isa; isa++)
        for (int32_t i = 2; i < 4; i++) {
            assert_int_equal(c->is_attention[i], i == 3); /* one layer of each kind */
            part parts[MAX_LAYER_PARTS];
            int32_t n = layer_parts(c, i == 3, parts);
            for (int32_t k = 0; k < 3 * n; k++) {
                const part *p = &parts[k / 3];
                broken_model m;
                char what[128];
                begin(&m);
                spoil(&m, p, &m.layers[i], values[k % 3].bits);
                snprintf(what, sizeof what, "%s in %s", values[k % 3].name, p->stem);
                check_reported(&m.weights, *isa, what);
                free(m.copy);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_every_tensor),
    };
    return cmocka_run_group_tests(tests, oracle_setup, oracle_teardown);
}
