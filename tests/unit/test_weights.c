/* The tensors as the model sees them: both layouts of oracle-a, refusals, and a checkpoint of full
 * size. */
#include "support/files.h"
#include "support/support.h"

#include "base/numbers.h"
#include "model/inventory.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static model_weights mlx4, bf16;

static int open_oracles(void **state)
{
    (void)state;
    calla_error err;
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &mlx4, &err), &err);
    assert_ok(model_weights_open(source_path("tests/data/oracle-a/bf16"), &bf16, &err), &err);
    return 0;
}

static int close_oracles(void **state)
{
    (void)state;
    model_weights_close(&mlx4);
    model_weights_close(&bf16);
    return 0;
}

static void test_counters(void **state)
{
    (void)state;
    model_sizes sizes;
    const model_weights *both[] = {&mlx4, &bf16};
    for (int i = 0; i < 2; i++) {
        const model_weights *w = both[i];
        model_sizes_compute(&w->config, w->config.layout, &sizes);
        assert_int_equal(w->n_parameters, sizes.n_parameters);
        assert_int_equal(w->text_bytes, sizes.text_bytes);
        assert_int_equal(w->expert_bytes, sizes.expert_bytes);
        assert_int_equal(w->token_bytes, sizes.token_bytes);
        assert_int_equal(w->tensors.n_tensors, sizes.n_tensors);
        assert_int_equal(w->n_skipped, 0);
        assert_int_equal(w->skipped_bytes, 0);
    }
    assert_int_equal(mlx4.n_parameters, bf16.n_parameters);
    assert_int_equal(bf16.text_bytes, 2 * bf16.n_parameters);
    /* 3 experts matrices of 64 x 128 at 4.5 bits, 16 experts, 4 layers. */
    assert_int_equal(mlx4.expert_bytes, 4 * 16 * 3 * 64 * 128 * 9 / 16);
}

/* ---- every matrix ---- */

/* Element c of a row by the words of MODEL.md 2.2. */
static float decode(const tensor *w, const tensor *s, const tensor *b, int64_t row, int32_t cols,
                    int bits, int32_t c)
{
    int32_t per_word = 32 / bits;
    uint32_t word;
    uint16_t scale, bias;
    memcpy(&word, w->data + 4 * ((size_t)row * (size_t)(cols / per_word) + (size_t)(c / per_word)),
           4);
    size_t group = (size_t)row * (size_t)(cols / 64) + (size_t)(c / 64);
    memcpy(&scale, s->data + 2 * group, 2);
    memcpy(&bias, b->data + 2 * group, 2);
    uint32_t q = word >> (bits * (c % per_word)) & ((1u << bits) - 1);
    return bf16_to_f32(scale) * (float)q + bf16_to_f32(bias);
}

static const tensor *named(const model_weights *w, const char *prefix, const char *stem,
                           const char *suffix)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s%s", prefix, stem, suffix);
    const tensor *t = tensor_set_find(&w->tensors, name);
    if (!t) fail_msg("%s is missing", name);
    return t;
}

/* The quantised matrix `q` is its file's content bit for bit, and near the original `b`: a step
 * (the quantiser moves the scale so that the larger edge is exact, which can cut half a step off
 * the other end) and what rounding scale and bias to bf16 costs. `first` is its first row in the
 * tensor. */
static void check_matrix(const matrix *q, const matrix *b, const char *prefix, const char *stem,
                         int64_t first)
{
    static float x[4096], y[4096];
    assert_int_equal(q->rows, b->rows);
    assert_int_equal(q->cols, b->cols);
    assert_true(q->cols <= 4096);
    int bits = quantized_bits(stem);
    assert_int_equal(q->format, bits == 8 ? MATRIX_Q8 : MATRIX_Q4);
    assert_int_equal(b->format, MATRIX_BF16);
    const tensor *codes = named(&mlx4, prefix, stem, ".weight");
    const tensor *scales = named(&mlx4, prefix, stem, ".scales");
    const tensor *biases = named(&mlx4, prefix, stem, ".biases");
    for (int64_t r = 0; r < q->rows; r++) {
        matrix_dequantize_row(q, r, x);
        matrix_dequantize_row(b, r, y);
        for (int32_t c = 0; c < q->cols; c++) {
            float expected = decode(codes, scales, biases, first + r, q->cols, bits, c);
            if (memcmp(&x[c], &expected, 4) != 0)
                fail_msg("%s%s [%d][%d]: %g, expected %g", prefix, stem, (int)r, c, x[c], expected);
            matrix row = matrix_rows(q, r, 1);
            float step = fabsf(bf16_to_f32(row.scales[c / 64]));
            float slack = (step * 15 + fabsf(bf16_to_f32(row.biases[c / 64]))) / 256;
            if (!(fabsf(x[c] - y[c]) <= step + slack))
                fail_msg("%s%s [%d][%d]: %g, original %g", prefix, stem, (int)r, c, x[c], y[c]);
        }
    }
}

static void check_norm(const norm_view *q, const norm_view *b)
{
    assert_false(q->add_one);
    assert_true(b->add_one);
    assert_int_equal(q->weight.n, b->weight.n);
    for (int32_t i = 0; i < q->weight.n; i++) {
        float x = norm_factor(q, i), y = norm_factor(b, i);
        assert_true(fabsf(x - y) <= fabsf(y) / 256); /* stored as bf16 of 1 + w */
    }
}

static void check_vector(const vector_view *q, const vector_view *b, int32_t n)
{
    assert_int_equal(q->n, n);
    assert_int_equal(b->n, n);
    for (int32_t i = 0; i < n; i++) assert_true(vector_at(q, i) == vector_at(b, i));
}

static void check_part(const part *p, const char *prefix, const void *q, const void *b)
{
    q = (const char *)q + p->offset;
    b = (const char *)b + p->offset;
    switch (p->kind) {
    case PART_MATRIX:
    case PART_EMBEDDING:
        assert_int_equal(((const matrix *)q)->rows, p->rows);
        assert_int_equal(((const matrix *)q)->cols, p->cols);
        check_matrix(q, b, prefix, p->stem, 0);
        break;
    case PART_EXPERTS:
        for (int32_t e = 0; e < mlx4.config.n_experts; e++) {
            matrix x = expert_matrix(q, e), y = expert_matrix(b, e);
            assert_int_equal(x.rows, p->rows);
            check_matrix(&x, &y, prefix, p->stem, (int64_t)e * p->rows);
        }
        break;
    case PART_NORM:
        check_norm(q, b);
        break;
    case PART_VECTOR:
        check_vector(q, b, p->rows);
        break;
    case PART_CONV:
        check_vector(q, b, 4 * p->rows);
        break;
    }
}

static void test_both_layouts(void **state)
{
    (void)state;
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    for (int32_t i = 0; i < mlx4.config.n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%d.", i);
        bool attention = i == 3;
        assert_int_equal(mlx4.layers[i].is_attention, attention);
        assert_int_equal(bf16.layers[i].is_attention, attention);
        int32_t n = layer_parts(&mlx4.config, attention, parts);
        for (int32_t k = 0; k < n; k++)
            check_part(&parts[k], prefix, &mlx4.layers[i], &bf16.layers[i]);
        if (!attention) assert_false(bf16.layers[i].gdn.norm.add_one);
    }
    outer_parts(&mlx4.config, outer);
    for (int32_t k = 0; k < N_OUTER_PARTS; k++)
        check_part(&outer[k], k == 2 ? "language_model." : "language_model.model.", &mlx4, &bf16);
}

/* The first channel's taps, oldest first, as the file has them. */
static void test_conv_taps(void **state)
{
    (void)state;
    const tensor *t =
        named(&bf16, "model.language_model.layers.0.", "linear_attn.conv1d", ".weight");
    for (int32_t i = 0; i < 8; i++) {
        uint16_t bits;
        memcpy(&bits, t->data + 2 * i, 2);
        assert_true(vector_at(&bf16.layers[0].gdn.conv, i) == bf16_to_f32(bits));
    }
}

static void test_vector_types(void **state)
{
    (void)state;
    unsigned char bytes[9];
    float f = -1.5f;
    memcpy(bytes + 1, &f, 4); /* at an odd address */
    vector_view v = {.data = bytes + 1, .n = 1, .is_f32 = true};
    assert_true(vector_at(&v, 0) == -1.5f);
    uint16_t h = f32_to_bf16(0.25f);
    memcpy(bytes + 3, &h, 2);
    v = (vector_view){.data = bytes + 1, .n = 2};
    assert_true(vector_at(&v, 1) == 0.25f);
    assert_true(norm_factor(&(norm_view){v, false}, 1) == 0.25f);
    assert_true(norm_factor(&(norm_view){v, true}, 1) == 1.25f);
}

/* ---- the same model, written otherwise ---- */

static void check_same_as_mlx4(const model_weights *w)
{
    static float x[4096], y[4096];
    for (int32_t r = 0; r < w->embedding.rows; r++) {
        matrix_dequantize_row(&w->embedding, r, x);
        matrix_dequantize_row(&mlx4.embedding, r, y);
        assert_memory_equal(x, y, (size_t)w->embedding.cols * 4);
    }
    for (int32_t i = 0; i < w->final_norm.weight.n; i++)
        assert_true(vector_at(&w->final_norm.weight, i) == vector_at(&mlx4.final_norm.weight, i));
    assert_true(vector_at(&w->layers[0].gdn.conv, 7) == vector_at(&mlx4.layers[0].gdn.conv, 7));
}

/* MLX writes headers of any length: the data may begin at an odd address. */
static void test_odd_header(void **state)
{
    (void)state;
    calla_error err;
    model_weights w;
    const char *dir = edit_checkpoint(source_path("tests/data/oracle-a/mlx4"), NULL, 0,
                                      &(text_edit){"{", "{ "}, 1);
    assert_ok(model_weights_open(dir, &w, &err), &err);
    assert_int_equal((uintptr_t)w.embedding.scales % 2, 1);
    check_same_as_mlx4(&w);
    model_weights_close(&w);
}

static void test_shards(void **state)
{
    (void)state;
    calla_error err;
    model_weights w;
    const char *dir = temporary_dir();
    const char *src = source_path("tests/data/oracle-a/mlx4");
    char path[512], *index = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", src);
    char *config = read_test_file(path, &n);
    write_test_file(dir, "config.json", config, n);
    free(config);
    /* The one file as shard of an index, with a second shard of tensors that are skipped. */
    snprintf(path, sizeof path, "%s/model.safetensors", src);
    char *file = read_test_file(path, &n);
    write_test_file(dir, "model-00001-of-00002.safetensors", file, n);
    free(file);
    write_safetensors(
        dir, "model-00002-of-00002.safetensors",
        "{\"vision_tower.x\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"mtp.fc.weight\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[6,8]}}",
        NULL, 8);
    size_t used = 0, room = 1 << 16;
    index = malloc(room);
    assert_non_null(index);
    used += (size_t)sprintf(index, "{\"weight_map\":{\"vision_tower.x\":\"model-00002-of-00002."
                                   "safetensors\",\"mtp.fc.weight\":\"model-00002-of-00002."
                                   "safetensors\"");
    for (int32_t i = 0; i < mlx4.tensors.n_tensors; i++)
        used += (size_t)snprintf(index + used, room - used,
                                 ",\"%s\":\"model-00001-of-00002.safetensors\"",
                                 mlx4.tensors.tensors[i].name);
    assert_true(used + 3 < room);
    strcpy(index + used, "}}");
    write_test_file(dir, "model.safetensors.index.json", index, used + 2);
    free(index);
    assert_ok(model_weights_open(dir, &w, &err), &err);
    assert_int_equal(w.n_skipped, 2);
    assert_int_equal(w.skipped_bytes, 8);
    assert_int_equal(w.text_bytes, mlx4.text_bytes);
    assert_int_equal(w.tensors.n_files, 2);
    check_same_as_mlx4(&w);
    model_weights_close(&w);
}

/* The convolution's shape tells how norms are stored, in either layout (MODEL.md 2.2 item 5). */
static void test_norm_convention(void **state)
{
    (void)state;
    calla_error err;
    model_weights w;
    text_edit turn[3] = {
        {"[1024,4,1]", "[1024,1,4]"},
        {"[1024,4,1]", "[1024,1,4]"},
        {"[1024,4,1]", "[1024,1,4]"},
    };
    const char *src = source_path("tests/data/oracle-a/mlx4");
    assert_ok(model_weights_open(edit_checkpoint(src, NULL, 0, turn, 3), &w, &err), &err);
    assert_true(w.final_norm.add_one);
    assert_true(w.layers[0].input_norm.add_one);
    assert_true(w.layers[3].attention.q_norm.add_one);
    assert_false(w.layers[0].gdn.norm.add_one);
    model_weights_close(&w);
    for (int i = 0; i < 3; i++) turn[i] = (text_edit){"[1024,1,4]", "[1024,4,1]"};
    src = source_path("tests/data/oracle-a/bf16");
    assert_ok(model_weights_open(edit_checkpoint(src, NULL, 0, turn, 3), &w, &err), &err);
    assert_false(w.final_norm.add_one);
    model_weights_close(&w);
    /* All must agree. */
    assert_error(model_weights_open(edit_checkpoint(src, NULL, 0, turn, 1), &w, &err),
                 CALLA_ERR_INPUT, &err, "conv1d.weight has shape [1024, ");
}

static void test_text_only_names(void **state)
{
    (void)state;
    calla_error err;
    model_weights w;
    size_t n = (size_t)bf16.tensors.n_tensors;
    text_edit *edits = calloc(n, sizeof *edits);
    assert_non_null(edits);
    for (size_t i = 0; i + 1 < n; i++) edits[i] = (text_edit){"model.language_model.", "model."};
    const char *dir = edit_checkpoint(source_path("tests/data/oracle-a/bf16"), NULL, 0, edits,
                                      (int)n - 1); /* all but lm_head */
    free(edits);
    assert_ok(model_weights_open(dir, &w, &err), &err);
    assert_int_equal(w.n_parameters, bf16.n_parameters);
    model_weights_close(&w);
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        text_edit config, header;
        const char *message;
    } cases[] = {
        {"mlx4",
         {0},
         {"layers.2.mlp.gate.scales", "layers.2.mlp.gate.scalez"},
         "tensor language_model.model.layers.2.mlp.gate.scales is missing"},
        {"mlx4", {0}, {"model.norm.weight", "model.norn.weight"}, "model.norm.weight is missing"},
        {"mlx4",
         {0},
         {"embed_tokens.weight", "embed.weight"},
         "language_model.model.embed_tokens.weight is missing"},
        {"mlx4", {0}, {"[320,16]", "[16,320]"}, "has shape [16, 320], expected [320, 16]"},
        {"mlx4",
         {0},
         {"[16,64,16]", "[64,16,16]"},
         "has shape [64, 16, 16], expected [16, 64, 16]"},
        {"mlx4", {0}, {"\"U32\"", "\"F32\""}, "has dtype F32, expected U32"},
        {"mlx4", {0}, {"\"BF16\"", "\"F16\""}, "has dtype F16, expected BF16"},
        {"mlx4", {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"}, {0}, "layer_types is "},
        {"mlx4",
         {"\"num_experts\": 16", "\"num_experts\": 15"},
         {0},
         "mlp.gate.weight has shape [16, 32], expected [15, 32]"},
        {"mlx4",
         {"\"vocab_size\": 320", "\"vocab_size\": 384"},
         {0},
         "has shape [320, 16], expected [384, 16]"},
        {"mlx4",
         {"\"hidden_size\": 128", "\"hidden_size\": 64"},
         {0},
         "has shape [128], expected [64]"},
        {"mlx4", {"\"quantization\"", "\"q\""}, {0}, NULL},
        {"bf16",
         {0},
         {"layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.switch_mlp.gate_proj.weight"},
         "an unquantized MLX checkpoint (tensor "},
        {"bf16",
         {0},
         {"layers.1.mlp.experts.down_proj", "layers.1.mlp.experts.dawn_proj"},
         "layers.1.mlp.experts.down_proj is missing"},
        {"bf16",
         {0},
         {"[16,128,64]", "[16,64,128]"},
         "has shape [16, 64, 128], expected [16, 128, 64]"},
        {"bf16",
         {"\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 128"},
         {0},
         "mlp.experts.gate_up_proj has shape [16, 128, 128], expected [16, 256, 128]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char src[64];
        snprintf(src, sizeof src, "tests/data/oracle-a/%s", cases[i].dir);
        const char *dir =
            edit_checkpoint(source_path(src), &cases[i].config, cases[i].config.from != NULL,
                            &cases[i].header, cases[i].header.from != NULL);
        calla_error err;
        model_weights w = {.n_skipped = 7};
        calla_status status = model_weights_open(dir, &w, &err);
        if (!cases[i].message) { /* the equal quantization_config remains */
            assert_ok(status, &err);
            model_weights_close(&w);
            continue;
        }
        assert_error(status, CALLA_ERR_INPUT, &err, cases[i].message);
        assert_non_null(strstr(err.message, dir));
        assert_int_equal(w.n_skipped, 7); /* untouched */
    }
}

/* A layer too many, or a tensor nobody knows. */
static void test_leftovers(void **state)
{
    (void)state;
    static const text_edit fewer[2] = {
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"},
        {"\"linear_attention\",\n   \"full_attention\"", "\"linear_attention\""},
    };
    calla_error err;
    model_weights w;
    const char *src = source_path("tests/data/oracle-a/bf16");
    assert_error(model_weights_open(edit_checkpoint(src, fewer, 2, NULL, 0), &w, &err),
                 CALLA_ERR_INPUT, &err,
                 "tensor model.language_model.layers.3.input_layernorm.weight is not part of this "
                 "model");
    /* A bf16 tensor set under a quantised config, and the reverse. */
    const text_edit plain[2] = {{"\"quantization\"", "\"q\""},
                                {"\"quantization_config\"", "\"c\""}};
    src = source_path("tests/data/oracle-a/mlx4");
    assert_error(model_weights_open(edit_checkpoint(src, plain, 2, NULL, 0), &w, &err),
                 CALLA_ERR_INPUT, &err, "config.json has no quantization");
}

/* ---- full size ---- */

typedef struct header_text {
    char *text;
    size_t n, room;
    uint64_t offset;
} header_text;

static void add_tensor(header_text *h, const char *prefix, const char *stem, const char *suffix,
                       const char *dtype, int n_dims, const int64_t *shape)
{
    char dims[96];
    shape_text(n_dims, shape, dims, sizeof dims);
    uint64_t bytes = strcmp(dtype, "BF16") == 0 ? 2 : 4;
    for (int i = 0; i < n_dims; i++) bytes *= (uint64_t)shape[i];
    h->n +=
        (size_t)snprintf(h->text + h->n, h->room - h->n,
                         "%s\"%s%s%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,"
                         "%llu]}",
                         h->n > 1 ? "," : "", prefix, stem, suffix, dtype, dims,
                         (unsigned long long)h->offset, (unsigned long long)(h->offset + bytes));
    assert_true(h->n < h->room);
    h->offset += bytes;
}

static void add_part(header_text *h, const model_config *c, const char *prefix, const part *p)
{
    if (part_is_linear(p)) {
        int64_t shape[3] = {c->n_experts, p->rows, p->cols / 32 * quantized_bits(p->stem)};
        int skip = p->kind == PART_EXPERTS ? 0 : 1;
        add_tensor(h, prefix, p->stem, ".weight", "U32", 3 - skip, shape + skip);
        shape[2] = p->cols / 64;
        add_tensor(h, prefix, p->stem, ".scales", "BF16", 3 - skip, shape + skip);
        add_tensor(h, prefix, p->stem, ".biases", "BF16", 3 - skip, shape + skip);
    } else {
        int64_t shape[3] = {p->rows, 4, 1};
        bool f32 = strstr(p->stem, "A_log");
        add_tensor(h, prefix, p->stem, "", f32 ? "F32" : "BF16", p->kind == PART_CONV ? 3 : 1,
                   shape);
    }
}

static const text_edit to_full_size[] = {
    {"\"vocab_size\": 320", "\"vocab_size\": 248320"},
    {"\"hidden_size\": 128", "\"hidden_size\": 2048"},
    {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 40"},
    {"\"num_attention_heads\": 4", "\"num_attention_heads\": 16"},
    {"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 16"},
    {"\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 32"},
    {"\"num_experts\": 16", "\"num_experts\": 256"},
    {"\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 8"},
    {"\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 512"},
    {"\"shared_expert_intermediate_size\": 64", "\"shared_expert_intermediate_size\": 512"},
    {"\"layer_types\"", "\"other\""},
};

/* A checkpoint of full size whose data is one hole of 19.5 GB, with A_log in f32: opening it takes
 * memory for the names only. */
static void test_full_size(void **state)
{
    (void)state;
    calla_error err;
    model_config c;
    char *small = read_test_file(source_path("tests/data/oracle-a/mlx4/config.json"), NULL);
    char *text = edit_text(small, to_full_size, sizeof to_full_size / sizeof to_full_size[0]);
    assert_ok(model_config_parse(text, strlen(text), "c", &c, &err), &err);
    header_text h = {.text = malloc(1 << 20), .n = 1, .room = 1 << 20};
    assert_non_null(h.text);
    h.text[0] = '{';
    part parts[MAX_LAYER_PARTS], outer[N_OUTER_PARTS];
    for (int32_t i = 0; i < c.n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%d.", i);
        int32_t n = layer_parts(&c, c.is_attention[i], parts);
        for (int32_t k = 0; k < n; k++) add_part(&h, &c, prefix, &parts[k]);
    }
    outer_parts(&c, outer);
    for (int k = 0; k < N_OUTER_PARTS; k++)
        add_part(&h, &c, k == 2 ? "language_model." : "language_model.model.", &outer[k]);
    strcpy(h.text + h.n, "}");
    const char *dir = temporary_dir();
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    write_test_file(dir, "config.json", text, strlen(text));
    write_safetensors(dir, "model.safetensors", h.text, NULL, 0);
    assert_int_equal(truncate(path, (off_t)(8 + h.n + 1 + h.offset)), 0);
    free(h.text);
    free(text);
    free(small);

    struct rusage before, after;
    model_weights w;
    getrusage(RUSAGE_SELF, &before);
    assert_ok(model_weights_open(dir, &w, &err), &err);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 32 * 1024); /* KiB */
    assert_int_equal(w.tensors.n_tensors, 1757);
    assert_int_equal(w.n_parameters, 34660610688);
    assert_int_equal(w.text_bytes, 19508789376); /* MODEL.md 2.2, A_log in f32 */
    assert_int_equal(w.expert_bytes, 18119393280);
    assert_int_equal(w.token_bytes, 1669561728 + 30 * 32 * 2);
    assert_true(w.layers[0].gdn.a_log.is_f32);
    float row[2048];
    matrix last = expert_matrix(&w.layers[39].moe.down, 255);
    matrix_dequantize_row(&last, 2047, row);
    assert_true(row[511] == 0);
    model_weights_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters),        cmocka_unit_test(test_both_layouts),
        cmocka_unit_test(test_conv_taps),       cmocka_unit_test(test_vector_types),
        cmocka_unit_test(test_odd_header),      cmocka_unit_test(test_shards),
        cmocka_unit_test(test_norm_convention), cmocka_unit_test(test_text_only_names),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_full_size),
    };
    return cmocka_run_group_tests(tests, open_oracles, close_oracles);
}
