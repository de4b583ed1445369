/* What the parts of a layer cost, added up, is what the inventory says of the whole. */
#include "model/cost.h"
#include "model/inventory.h"
#include "support/support.h"

#include <string.h>

static model_weights weights;

static int setup(void **state)
{
    (void)state;
    calla_error err;
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &weights, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_weights_close(&weights);
    return 0;
}

/* All layers for n tokens of one sequence that see n_seen tokens, summed. */
static cost all_layers(cost *costs, int64_t n, int64_t n_seen, int64_t n_experts)
{
    const model_config *c = &weights.config;
    cost sum = {0};
    memset(costs, 0, N_OPERATIONS * sizeof *costs);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const layer_weights *l = &weights.layers[i];
        if (l->is_attention)
            cost_add_attention(costs, c, &l->attention, n, n_seen, n_seen, 2);
        else
            cost_add_gdn(costs, c, &l->gdn, n, 1);
        cost_add_moe(costs, c, &l->moe, n, n_experts);
    }
    for (int i = 0; i < N_OPERATIONS; i++) {
        sum.bytes += costs[i].bytes;
        sum.operations += costs[i].operations;
    }
    return sum;
}

static void operations_are_those_of_the_inventory(void **state)
{
    (void)state;
    const model_config *c = &weights.config;
    model_sizes sizes;
    cost costs[N_OPERATIONS];
    model_sizes_compute(c, CALLA_LAYOUT_MLX4, &sizes);
    for (int64_t n = 1; n < 5; n += 3) {
        cost sum = all_layers(costs, n, 0, c->n_experts_per_token);
        assert_int_equal(sum.operations - costs[OP_GDN_CONV].operations,
                         n * sizes.token_operations);
        cost more = all_layers(costs, n, 100, c->n_experts_per_token);
        assert_int_equal(more.operations - sum.operations, 100 * sizes.attention_operations);
        assert_int_equal(more.bytes - sum.bytes, 100 * 2 * 2 * c->kv_size * c->n_attention_layers);
    }
}

/* One more expert is its three matrices in every layer; one more token reads no more weights. */
static void bytes_are_those_of_what_is_read(void **state)
{
    (void)state;
    const model_config *c = &weights.config;
    cost costs[N_OPERATIONS];
    const moe_weights *m = &weights.layers[0].moe;
    int64_t expert = (int64_t)(matrix_bytes(&m->gate.first) + matrix_bytes(&m->up.first) +
                               matrix_bytes(&m->down.first));
    cost few = all_layers(costs, 1, 0, 2), more = all_layers(costs, 1, 0, 3);
    assert_int_equal(more.bytes - few.bytes, expert * c->n_layers);
    assert_int_equal(all_layers(costs, 7, 0, 2).bytes, few.bytes);
    memset(costs, 0, sizeof costs);
    cost_add_ends(costs, &weights, 3, 0);
    assert_int_equal(costs[OP_HEAD].bytes, 0);
    matrix row = matrix_rows(&weights.embedding, 0, 1);
    assert_int_equal(costs[OP_EMBEDDING].bytes, 3 * matrix_bytes(&row));
    cost_add_ends(costs, &weights, 3, 1);
    assert_int_equal(costs[OP_HEAD].bytes, matrix_bytes(&weights.head));
    assert_int_equal(costs[OP_HEAD].operations, 2 * (int64_t)weights.head.rows * weights.head.cols);
}

static void every_kind_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPERATIONS; i++) {
        assert_non_null(operation_name((operation)i));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(operation_name((operation)i), operation_name((operation)k));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_are_those_of_the_inventory),
        cmocka_unit_test(bytes_are_those_of_what_is_read),
        cmocka_unit_test(every_kind_has_a_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
