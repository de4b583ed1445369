/* The quantizer: arithmetic against MLX's own numbers, whole checkpoints against an independent
 * program's, and what is left on the disk when something goes wrong. */
#include "support/support.h"

#include "base/file.h"
#include "base/numbers.h"
#include "model/checkpoint_write.h"
#include "model/quantize_row.h"
#include "model/weights.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static calla_error err;

/* ---- helpers ---- */

static const char *in(const char *dir, const char *name)
{
    static char paths[4][4096];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

/* Entries of a directory; -1 if it does not exist. */
static int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return -1;
    int n = -2; /* "." and ".." */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void copy_oracle(const char *dst)
{
    assert_ok(dir_create(dst, &err), &err);
    const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++)
        assert_ok(file_copy(in(source_path("tests/data/oracle-a/bf16"), names[i]),
                            in(dst, names[i]), &err),
                  &err);
}

static const char *oracle(void)
{
    return source_path("tests/data/oracle-a/bf16");
}

static void read_text(const char *dir, const char *name, char **text, size_t *n)
{
    assert_ok(file_read(in(dir, name), 64 << 20, text, n, &err), &err);
}

static void assert_same_file(const char *dir_a, const char *dir_b, const char *name)
{
    char *a, *b;
    size_t n, m;
    read_text(dir_a, name, &a, &n);
    read_text(dir_b, name, &b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

/* ---- arithmetic ---- */

static double at(json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static uint16_t bf16_at(json_t *list, size_t i)
{
    return f32_to_bf16((float)at(list, i));
}

/* The fixture has MLX's codes, scales, biases and decoded values, but inputs only for the ramps,
 * w = (i - 32) / 2. Where a code has few values the decoded ones quantize to the same codes again;
 * with 8 bits bf16 cannot hold them, and a code may move by one. */
static void check_case(json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    int bits = (int)json_integer_value(json_object_get(c, "bits"));
    size_t rows = (size_t)json_integer_value(json_object_get(c, "rows"));
    size_t cols = (size_t)json_integer_value(json_object_get(c, "cols")), groups = cols / 64;
    json_t *codes = json_object_get(c, "codes"), *decoded = json_object_get(c, "expected");
    bool ramp = strstr(name, "ramp") != NULL, loose = bits == 8 && !ramp;
    for (size_t r = 0; r < rows; r++) {
        uint16_t w[256], scales[4], biases[4];
        unsigned char q[256];
        for (size_t i = 0; i < cols; i++)
            w[i] = ramp ? f32_to_bf16(((float)i - 32) / 2) : bf16_at(decoded, r * cols + i);
        assert_true(quantize_row(w, (int64_t)cols, bits, q, scales, biases));
        for (size_t g = 0; g < groups; g++) {
            assert_int_equal(scales[g], bf16_at(json_object_get(c, "scales"), r * groups + g));
            assert_int_equal(biases[g], bf16_at(json_object_get(c, "biases"), r * groups + g));
        }
        for (size_t b = 0; b < cols * (size_t)bits / 8; b++) {
            size_t word = (r * cols * (size_t)bits / 8 + b) / 4;
            uint32_t v = (uint32_t)json_integer_value(json_array_get(codes, word));
            int expected = (int)(v >> 8 * (b % 4) & 255);
            if (abs(q[b] - expected) > (loose ? 1 : 0))
                fail_msg("%s: byte %zu of row %zu is %d, MLX has %d", name, b, r, q[b], expected);
        }
    }
}

static void test_fixture(void **state)
{
    (void)state;
    json_t *root = json_load_file(source_path("tests/data/quant_fixture.json"), 0, NULL);
    assert_non_null(root);
    json_t *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 6);
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i));
    json_decref(root);
}

static void fill(uint16_t w[64], float x)
{
    for (int i = 0; i < 64; i++) w[i] = f32_to_bf16(x);
}

static void test_row_edges(void **state)
{
    (void)state;
    uint16_t w[65], scale, bias;
    unsigned char q[64];
    /* All zero, either sign: scale -1e-7, bias and codes 0. */
    for (int sign = 0; sign < 2; sign++) {
        fill(w, sign ? -0.0f : 0.0f);
        assert_true(quantize_row(w, 64, 4, q, &scale, &bias));
        assert_int_equal(scale, f32_to_bf16(-1e-7f));
        assert_int_equal(bias, 0);
        for (int i = 0; i < 32; i++) assert_int_equal(q[i], 0);
    }
    /* Halves go away from zero: s = 2, bias = -16, w = -13 is code 1.5, w = -11 code 2.5. */
    fill(w, -13);
    w[1] = f32_to_bf16(-11), w[2] = f32_to_bf16(-16), w[3] = f32_to_bf16(14);
    assert_true(quantize_row(w, 64, 4, q, &scale, &bias));
    assert_int_equal(scale, f32_to_bf16(2));
    assert_int_equal(q[0], 2 | 3 << 4);
    assert_int_equal(q[1], 0 | 15 << 4);
    /* An unaligned row gives the same. */
    unsigned char bytes[129], again[32];
    memcpy(bytes + 1, w, 128);
    assert_true(quantize_row(bytes + 1, 64, 4, again, &scale, &bias));
    assert_memory_equal(again, q, 32);
    /* Largest finite values overflow the range; infinities and NaN have none. */
    const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffff};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fill(w, 1);
        w[63] = bad[i];
        assert_false(quantize_row(w, 64, 4, q, &scale, &bias));
    }
    w[62] = 0x7f7f, w[63] = 0xff7f;
    assert_false(quantize_row(w, 64, 8, q, &scale, &bias));
    w[63] = 0x7f7f;
    assert_true(quantize_row(w, 64, 8, q, &scale, &bias));
}

/* ---- whole checkpoints ---- */

/* oracle-a/mlx4 was made by a program that computes in float64 and rounds halves of edge/s to even.
 * Where edge/s lies on a half or within f32's rounding of one, it takes the other q0; nothing else
 * may differ. */
static bool near_half(const mapped_bf16 *w, int bits)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < 64; i++) {
        double x = (double)bf16_to_f32(w[i]);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    double q0 = fmax(fabs(lo), fabs(hi)) / ((hi - lo) / (bits == 4 ? 15 : 255));
    return fabs(q0 - floor(q0) - 0.5) < 1e-4;
}

typedef struct tally {
    int64_t groups, equal, halves;
} tally;

static void compare_matrix(const matrix *w, const matrix *a, const matrix *b, tally *t)
{
    assert_int_equal(a->format, b->format);
    int bits = a->format == MATRIX_Q4 ? 4 : 8;
    size_t group_bytes = (size_t)(64 * bits / 8);
    for (int32_t r = 0; r < a->rows; r++) {
        matrix s = matrix_rows(w, r, 1), x = matrix_rows(a, r, 1), y = matrix_rows(b, r, 1);
        for (int32_t g = 0; g < a->cols / 64; g++, t->groups++) {
            size_t o = (size_t)g * group_bytes;
            bool same = x.scales[g] == y.scales[g] && x.biases[g] == y.biases[g] &&
                        !memcmp((const char *)x.codes + o, (const char *)y.codes + o, group_bytes);
            if (same)
                t->equal++;
            else if (near_half((const mapped_bf16 *)s.codes + 64 * g, bits))
                t->halves++;
            else
                fail_msg("row %d group %d differs without a reason", r, g);
        }
    }
}

static void compare_layers(const layer_weights *s, const layer_weights *a, const layer_weights *b,
                           int32_t n_experts, tally *t)
{
#define COMPARE(field) compare_matrix(&s->field, &a->field, &b->field, t)
    if (a->is_attention) {
        COMPARE(attention.q), COMPARE(attention.k), COMPARE(attention.v), COMPARE(attention.o);
    } else {
        COMPARE(gdn.qkv), COMPARE(gdn.z), COMPARE(gdn.b), COMPARE(gdn.a), COMPARE(gdn.out);
    }
    COMPARE(moe.router), COMPARE(moe.shared_gate), COMPARE(moe.shared_up);
    COMPARE(moe.shared_down), COMPARE(moe.shared_expert_gate);
    for (int32_t e = 0; e < n_experts; e++) {
        const expert_matrices *m[3][3] = {{&s->moe.gate, &a->moe.gate, &b->moe.gate},
                                          {&s->moe.up, &a->moe.up, &b->moe.up},
                                          {&s->moe.down, &a->moe.down, &b->moe.down}};
        for (int k = 0; k < 3; k++) {
            matrix x = expert_matrix(m[k][0], e), y = expert_matrix(m[k][1], e),
                   z = expert_matrix(m[k][2], e);
            compare_matrix(&x, &y, &z, t);
        }
    }
}

static void test_oracle(void **state)
{
    (void)state;
    const char *dst = in(temporary_dir(), "new");
    assert_ok(calla_quantize(oracle(), dst, NULL, &err), &err);
    assert_int_equal(count_entries(dst), 3);
    model_weights s, a, b;
    assert_ok(model_weights_open(oracle(), &s, &err), &err);
    assert_ok(model_weights_open(dst, &a, &err), &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &b, &err), &err);
    tally t = {0};
    for (int32_t i = 0; i < a.config.n_layers; i++)
        compare_layers(&s.layers[i], &a.layers[i], &b.layers[i], a.config.n_experts, &t);
    compare_matrix(&s.embedding, &a.embedding, &b.embedding, &t);
    compare_matrix(&s.head, &a.head, &b.head, &t);
    printf("oracle-a: %lld groups, %lld equal, %lld at a half\n", (long long)t.groups,
           (long long)t.equal, (long long)t.halves);
    assert_int_equal(t.groups, 48056);
    assert_true(t.halves < 200);
    /* Same tensors, and the same bytes in those that are not quantized. */
    assert_int_equal(a.tensors.n_tensors, b.tensors.n_tensors);
    for (int32_t i = 0; i < a.tensors.n_tensors; i++) {
        const tensor *x = &a.tensors.tensors[i], *y = &b.tensors.tensors[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->n_bytes, y->n_bytes);
        if (x->dtype == DTYPE_BF16 && !strstr(x->name, ".scales") && !strstr(x->name, ".biases"))
            assert_memory_equal(x->data, y->data, x->n_bytes);
    }
    model_weights_close(&s);
    model_weights_close(&a);
    model_weights_close(&b);
}

static void test_shards(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char one[256], many[256];
    snprintf(one, sizeof one, "%s/one", root);
    snprintf(many, sizeof many, "%s/many", root);
    calla_write_options options = {.max_shard_bytes = 100000};
    assert_ok(calla_quantize(oracle(), one, NULL, &err), &err);
    assert_ok(calla_quantize(oracle(), many, &options, &err), &err);
    model_weights a, b;
    assert_ok(model_weights_open(one, &a, &err), &err);
    assert_ok(model_weights_open(many, &b, &err), &err);
    assert_int_equal(a.tensors.n_files, 1);
    assert_in_range(b.tensors.n_files, 18, 40);
    assert_int_equal(a.tensors.n_tensors, b.tensors.n_tensors);
    for (int32_t i = 0; i < a.tensors.n_tensors; i++) {
        const tensor *x = &a.tensors.tensors[i], *y = &b.tensors.tensors[i];
        assert_string_equal(x->name, y->name);
        assert_memory_equal(x->data, y->data, x->n_bytes);
    }
    model_weights_close(&a);
    model_weights_close(&b);
}

/* All shards are open at once while they are written. */
static void test_too_many_shards(void **state)
{
    (void)state;
    for (int32_t n = 256; n <= 257; n++) {
        checkpoint_plan plan = {0};
        for (int32_t i = 0; i < n; i++) {
            char name[32];
            const int64_t shape[1] = {1};
            snprintf(name, sizeof name, "t%d", i);
            assert_ok(checkpoint_plan_add(&plan, name, DTYPE_U32, 1, shape, NULL, &err), &err);
        }
        calla_status status = checkpoint_plan_layout(&plan, 3, &err);
        if (n == 256)
            assert_ok(status, &err);
        else
            assert_error(status, CALLA_ERR_INPUT, &err, "257 shards");
        checkpoint_plan_free(&plan);
    }
}

/* What mlx-lm's conversion adds, copies and leaves out. */
static void test_side_files(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char src[256], dst[256];
    snprintf(src, sizeof src, "%s/src", root);
    snprintf(dst, sizeof dst, "%s/dst", root);
    copy_oracle(src);
    json_t *config = json_load_file(in(src, "config.json"), 0, NULL);
    json_object_set_new(config, "vision_config", json_pack("{s:i}", "depth", 27));
    json_object_set_new(config, "image_token_id", json_integer(7));
    json_dump_file(config, in(src, "config.json"), 0);
    json_decref(config);
    const char *const copied[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                  "vocab.json", "merges.txt"};
    for (int i = 0; i < 5; i++)
        assert_ok(file_write(in(src, copied[i]), copied[i], strlen(copied[i]), &err), &err);
    const char generation[] = "{\"eos_token_id\": [319, 318]}";
    assert_ok(
        file_write(in(src, "generation_config.json"), generation, sizeof generation - 1, &err),
        &err);
    assert_ok(file_write(in(src, "notes.txt"), "x", 1, &err), &err);
    assert_ok(calla_quantize(src, dst, NULL, &err), &err);
    for (int i = 0; i < 5; i++) assert_same_file(src, dst, copied[i]);
    assert_same_file(src, dst, "generation_config.json");
    assert_int_equal(count_entries(dst), 3 + 5 + 1);

    config = json_load_file(in(dst, "config.json"), 0, NULL);
    assert_null(json_object_get(config, "vision_config"));
    assert_int_equal(json_integer_value(json_object_get(config, "image_token_id")), 7);
    assert_int_equal(json_array_size(json_object_get(config, "eos_token_id")), 2);
    json_t *q = json_object_get(config, "quantization");
    assert_true(json_equal(q, json_object_get(config, "quantization_config")));
    assert_int_equal(json_object_size(q), 3 + 2 * 4);
    assert_string_equal(json_string_value(json_object_get(q, "mode")), "affine");
    q = json_object_get(q, "language_model.model.layers.3.mlp.shared_expert_gate");
    assert_int_equal(json_integer_value(json_object_get(q, "bits")), 8);
    json_decref(config);
    char *text;
    size_t n;
    read_text(dst, "config.json", &text, &n);
    assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-6,"));
    free(text);
    json_t *index = json_load_file(in(dst, "model.safetensors.index.json"), 0, NULL);
    json_t *total = json_object_get(json_object_get(index, "metadata"), "total_size");
    model_weights w;
    assert_ok(model_weights_open(dst, &w, &err), &err);
    assert_int_equal(json_integer_value(total), w.text_bytes);
    assert_int_equal(json_object_size(json_object_get(index, "weight_map")), w.tensors.n_tensors);
    json_decref(index);
    model_weights_close(&w);
}

/* Writes the oracle's bf16 checkpoint with the vectors of linear_attn in f32. */
static void write_f32_oracle(const char *dst)
{
    tensor_set set;
    checkpoint_plan plan = {0};
    checkpoint_writer w;
    const calla_write_options options = {0};
    assert_ok(tensor_set_open(oracle(), &set, &err), &err);
    for (int32_t i = 0; i < set.n_tensors; i++) {
        const tensor *t = &set.tensors[i];
        bool wide = strstr(t->name, "A_log") || strstr(t->name, "dt_bias") ||
                    strstr(t->name, "linear_attn.norm");
        assert_ok(checkpoint_plan_add(&plan, t->name, wide ? DTYPE_F32 : DTYPE_BF16, t->n_dims,
                                      t->shape, NULL, &err),
                  &err);
    }
    assert_ok(checkpoint_plan_layout(&plan, 1 << 30, &err), &err);
    assert_ok(checkpoint_writer_open(&w, dst, &plan, 0, 1, &options, &err), &err);
    for (int32_t i = 0; i < set.n_tensors; i++) {
        const tensor *t = &set.tensors[i];
        float wide[128];
        bool is_wide = plan.tensors[i].dtype == DTYPE_F32;
        for (size_t k = 0; is_wide && k < t->n_bytes / 2; k++)
            wide[k] = bf16_to_f32(((const mapped_bf16 *)t->data)[k]) * 1.0009765625f;
        assert_ok(checkpoint_writer_put(&w, i, 0, is_wide ? (const void *)wide : t->data,
                                        plan.tensors[i].n_bytes, &err),
                  &err);
    }
    char *config;
    size_t n;
    read_text(oracle(), "config.json", &config, &n);
    assert_ok(checkpoint_writer_add_file(&w, "config.json", config, n, &err), &err);
    assert_ok(checkpoint_writer_commit(&w, &err), &err);
    free(config);
    checkpoint_plan_free(&plan);
    tensor_set_close(&set);
}

/* A_log keeps its f32, the other vectors are rounded to bf16 as mlx-lm does. */
static void test_f32_vectors(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char src[256], dst[256];
    snprintf(src, sizeof src, "%s/src", root);
    snprintf(dst, sizeof dst, "%s/dst", root);
    write_f32_oracle(src);
    assert_ok(calla_quantize(src, dst, NULL, &err), &err);
    model_weights a, b;
    assert_ok(model_weights_open(src, &a, &err), &err);
    assert_ok(model_weights_open(dst, &b, &err), &err);
    const gdn_weights *x = &a.layers[0].gdn, *y = &b.layers[0].gdn;
    assert_true(x->a_log.is_f32 && y->a_log.is_f32 && x->dt_bias.is_f32);
    assert_false(y->dt_bias.is_f32 || y->norm.weight.is_f32);
    for (int32_t i = 0; i < 4; i++) {
        assert_true(vector_at(&x->a_log, i) == vector_at(&y->a_log, i));
        assert_true(bf16_to_f32(f32_to_bf16(vector_at(&x->dt_bias, i))) ==
                    vector_at(&y->dt_bias, i));
    }
    model_weights_close(&a);
    model_weights_close(&b);
}

/* ---- refusals and failures ---- */

static void test_destination_in_use(void **state)
{
    (void)state;
    char dst[256];
    snprintf(dst, sizeof dst, "%s", temporary_dir());
    calla_write_options options = {.max_shard_bytes = 500000};
    assert_ok(file_write(in(dst, "notes.txt"), "mine", 4, &err), &err);
    assert_error(calla_quantize(oracle(), dst, &options, &err), CALLA_ERR_INPUT, &err, "notes.txt");
    assert_int_equal(count_entries(dst), 1);
    assert_error(calla_quantize(oracle(), in(dst, "notes.txt"), &options, &err), CALLA_ERR_INPUT,
                 &err, "not a directory");
    assert_error(calla_quantize(oracle(), in(dst, "no/such/dir"), &options, &err), CALLA_ERR_IO,
                 &err, "no/such");
    options.overwrite = true;
    assert_ok(calla_quantize(oracle(), dst, &options, &err), &err);
    int sharded = count_entries(dst);
    assert_true(sharded >= 6);
    /* What a killed run left and a stale tokenizer go; another program's file stays. */
    assert_ok(file_write(in(dst, "model-00001-of-00009.safetensors.aB3xYz"), "x", 1, &err), &err);
    assert_ok(file_write(in(dst, "tokenizer.json"), "x", 1, &err), &err);
    options.max_shard_bytes = 0;
    assert_ok(calla_quantize(oracle(), dst, &options, &err), &err);
    assert_int_equal(count_entries(dst), 4);
    assert_true(file_exists(in(dst, "notes.txt")) && file_exists(in(dst, "model.safetensors")));
    model_weights w;
    assert_ok(model_weights_open(dst, &w, &err), &err);
    model_weights_close(&w);
    /* The source itself is never overwritten. */
    copy_oracle(dst);
    assert_error(calla_quantize(dst, in(dst, "../") /* other spelling */, &options, &err),
                 CALLA_ERR_INPUT, &err, "");
    assert_error(calla_quantize(dst, in(dst, "."), &options, &err), CALLA_ERR_INPUT, &err,
                 "same directory");
}

static void test_bad_source(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char src[256], dst[256];
    snprintf(src, sizeof src, "%s/src", root);
    snprintf(dst, sizeof dst, "%s/dst", root);
    assert_error(calla_quantize(source_path("tests/data/oracle-a/mlx4"), dst, NULL, &err),
                 CALLA_ERR_INPUT, &err, "quantized already");
    assert_error(calla_quantize(in(root, "none"), dst, NULL, &err), CALLA_ERR_IO, &err, "none");
    assert_int_equal(count_entries(dst), -1);

    copy_oracle(src);
    tensor_set set;
    assert_ok(tensor_set_open(src, &set, &err), &err);
    const tensor *t =
        tensor_set_find(&set, "model.language_model.layers.1.mlp.experts.gate_up_proj");
    assert_non_null(t);
    /* Expert 2 has rows 256 ... 383, up from 320: row 330 is row 138 of up over all experts. */
    long offset = (long)(t->data - set.files[0].map.data) + 330 * 128 * 2 + 8;
    tensor_set_close(&set);
    FILE *f = fopen(in(src, "model.safetensors"), "r+b");
    assert_non_null(f);
    fseek(f, offset, SEEK_SET);
    fwrite("\xc0\x7f", 1, 2, f);
    fclose(f);
    assert_error(calla_quantize(src, dst, NULL, &err), CALLA_ERR_INPUT, &err,
                 "layers.1.mlp.switch_mlp.up_proj: row 138");
    assert_int_equal(count_entries(dst), -1);
}

/* A full disk, as a limit on file sizes: the write fails, nothing is left. */
static void test_disk_full(void **state)
{
    (void)state;
    char dst[256], old[256];
    snprintf(dst, sizeof dst, "%s/dst", temporary_dir());
    snprintf(old, sizeof old, "%s", temporary_dir());
    calla_write_options options = {.overwrite = true};
    assert_ok(calla_quantize(oracle(), old, &options, &err), &err);
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 1000000;
    setrlimit(RLIMIT_FSIZE, &limit);
    calla_status status = calla_quantize(oracle(), dst, NULL, &err);
    calla_error second;
    calla_status status_old = calla_quantize(oracle(), old, &options, &second);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_error(status, CALLA_ERR_IO, &err, "model.safetensors: File too large");
    assert_int_equal(count_entries(dst), -1);
    /* An older checkpoint that was to be replaced is as it was. */
    assert_error(status_old, CALLA_ERR_IO, &second, "File too large");
    assert_int_equal(count_entries(old), 3);
    model_weights w;
    assert_ok(model_weights_open(old, &w, &err), &err);
    model_weights_close(&w);
}

static atomic_bool stop;
static int64_t last_done, last_total;

static void stop_half_way(void *user, int64_t done, int64_t total)
{
    (void)user;
    assert_true(done > 0 && done <= total);
    if (done > total / 2) atomic_store(&stop, true);
}

static void note_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    last_done = done;
    last_total = total;
}

static void test_cancel_and_progress(void **state)
{
    (void)state;
    char dst[256];
    snprintf(dst, sizeof dst, "%s/dst", temporary_dir());
    calla_write_options options = {.cancel = &stop, .progress = stop_half_way};
    assert_error(calla_quantize(oracle(), dst, &options, &err), CALLA_ERR_CANCELLED, &err,
                 "cancelled");
    assert_true(atomic_load(&stop));
    assert_int_equal(count_entries(dst), -1);
    /* Set from the start, into an empty directory, which stays. */
    assert_ok(dir_create(dst, &err), &err);
    assert_error(calla_quantize(oracle(), dst, &options, &err), CALLA_ERR_CANCELLED, &err,
                 "cancelled");
    assert_int_equal(count_entries(dst), 0);
    atomic_store(&stop, false);
    options.progress = note_progress;
    assert_ok(calla_quantize(oracle(), dst, &options, &err), &err);
    assert_int_equal(last_done, last_total);
    assert_int_equal(last_total, 6188816 - 8 - 8920);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture),
        cmocka_unit_test(test_row_edges),
        cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_too_many_shards),
        cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_f32_vectors),
        cmocka_unit_test(test_destination_in_use),
        cmocka_unit_test(test_bad_source),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_cancel_and_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
