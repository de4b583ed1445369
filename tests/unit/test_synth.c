/* Synthetic checkpoints: the same options give the same bytes, both layouts hold the same model,
 * the tokenizer is a real one, and nothing is left of a failed run. */
#include "support/support.h"

#include "base/file.h"
#include "base/numbers.h"
#include "model/synth_shape.h"
#include "model/synth_tokenizer.h"
#include "model/weights.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static calla_error err;

static const char *const file_names[] = {"config.json",       "generation_config.json",
                                         "tokenizer.json",    "tokenizer_config.json",
                                         "model.safetensors", "model.safetensors.index.json"};
enum { N_FILES = sizeof file_names / sizeof file_names[0] };

static const char *in(const char *dir, const char *name)
{
    static char paths[4][4096];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

static int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return -1;
    int n = -2; /* "." and ".." */
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static bool same_file(const char *a, const char *b, const char *name)
{
    mapped_file x, y;
    assert_ok(mapped_file_open(in(a, name), &x, &err), &err);
    assert_ok(mapped_file_open(in(b, name), &y, &err), &err);
    bool same = x.n_bytes == y.n_bytes && memcmp(x.data, y.data, x.n_bytes) == 0;
    mapped_file_close(&x);
    mapped_file_close(&y);
    return same;
}

/* Half the shape's layers: one of each kind is among them, and tests write less. */
static const calla_synth_options tiny = {.shape = "tiny", .n_layers = 4, .seed = 7};

/* ---- content ---- */

static void test_same_bytes(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char a[256], b[256], c[256];
    snprintf(a, sizeof a, "%s/a", root);
    snprintf(b, sizeof b, "%s/b", root);
    snprintf(c, sizeof c, "%s/c", root);
    assert_ok(calla_synth(a, &tiny, NULL, &err), &err);
    assert_int_equal(count_entries(a), N_FILES);
    /* Once more, on one processor. */
    cpu_set_t all, one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    calla_status status = calla_synth(b, &tiny, NULL, &err);
    sched_setaffinity(0, sizeof all, &all);
    assert_ok(status, &err);
    for (int i = 0; i < N_FILES; i++) assert_true(same_file(a, b, file_names[i]));
    calla_synth_options other = tiny;
    other.seed = 8;
    assert_ok(calla_synth(c, &other, NULL, &err), &err);
    for (int i = 0; i < N_FILES; i++)
        assert_true(same_file(a, c, file_names[i]) ==
                    (strcmp(file_names[i], "model.safetensors") != 0));
}

/* Rows of a quantized matrix against bf16, which is what it was before quantization: errors are
 * about uniform in half a step, and at a group's end up to one and a half, where MLX cuts the range
 * to give zero a code; 8-bit steps are small beside the rounding of scale and bias. Returns the
 * root mean square of the values. */
static double check_matrix(const matrix *q, const matrix *w)
{
    float a[1024], b[1024];
    double sum = 0, errors = 0, most = q->format == MATRIX_Q8 ? 3 : 1.6;
    assert_int_equal(q->rows, w->rows);
    assert_int_equal(q->cols, w->cols);
    for (int32_t r = 0; r < q->rows; r++) {
        matrix row = matrix_rows(q, r, 1);
        matrix_dequantize_row(q, r, a);
        matrix_dequantize_row(w, r, b);
        for (int32_t c = 0; c < q->cols; c++) {
            double e = (double)(a[c] - b[c]) / (double)bf16_to_f32(row.scales[c / 64]);
            if (!(fabs(e) <= most))
                fail_msg("row %d column %d: %g in 4 bits, %g in bf16", r, c, a[c], b[c]);
            sum += (double)b[c] * b[c];
            errors += e * e;
        }
    }
    double n = (double)q->rows * q->cols;
    assert_true(sqrt(errors / n) < most / 4);
    return sqrt(sum / n);
}

static void check_experts(const expert_matrices *q, const expert_matrices *w, double sigma)
{
    for (int32_t e = 0; e < 16; e++) {
        matrix a = expert_matrix(q, e), b = expert_matrix(w, e);
        double rms = check_matrix(&a, &b) / sigma;
        assert_true(rms > 0.95 && rms < 1.06);
    }
}

static void check_vectors(const layer_weights *q, const layer_weights *w)
{
    for (int32_t i = 0; i < 256; i++) {
        float f = norm_factor(&q->input_norm, i), g = norm_factor(&w->input_norm, i);
        assert_true(f > 0.3f && f < 1.7f && fabsf(f - g) <= 0x1p-8f * f);
    }
    if (q->is_attention) return;
    for (int32_t h = 0; h < 4; h++) {
        float a = vector_at(&q->gdn.a_log, h), b = vector_at(&q->gdn.dt_bias, h);
        assert_true(a == vector_at(&w->gdn.a_log, h) && b == vector_at(&w->gdn.dt_bias, h));
        float decay = expf(-expf(a) * log1pf(expf(b)));
        assert_true(decay > 0.9f && decay < 1.0f);
    }
    for (int32_t i = 0; i < q->gdn.norm.weight.n; i++)
        assert_true(norm_factor(&q->gdn.norm, i) == norm_factor(&w->gdn.norm, i));
    assert_memory_equal(q->gdn.conv.data, w->gdn.conv.data, 1024 * 4 * 2);
}

static void test_layouts_agree(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    char a[256], b[256];
    snprintf(a, sizeof a, "%s/mlx4", root);
    snprintf(b, sizeof b, "%s/bf16", root);
    calla_synth_options options = tiny;
    assert_ok(calla_synth(a, &options, NULL, &err), &err);
    options.layout = CALLA_LAYOUT_BF16;
    assert_ok(calla_synth(b, &options, NULL, &err), &err);
    model_weights q, w;
    assert_ok(model_weights_open(a, &q, &err), &err);
    assert_ok(model_weights_open(b, &w, &err), &err);
    assert_int_equal(q.config.layout, CALLA_LAYOUT_MLX4);
    assert_int_equal(w.config.layout, CALLA_LAYOUT_BF16);
    assert_int_equal(q.config.n_layers, 4);
    assert_int_equal(q.config.n_attention_layers, 1);
    assert_int_equal(q.config.n_vocab, 4096);
    assert_int_equal(q.n_parameters, w.n_parameters);
    assert_int_equal(q.n_skipped, 0);
    for (int32_t i = 0; i < 4; i++) {
        const moe_weights *m = &q.layers[i].moe, *n = &w.layers[i].moe;
        check_experts(&m->gate, &n->gate, 1 / 16.0);
        check_experts(&m->up, &n->up, 1 / 16.0);
        check_experts(&m->down, &n->down, 1 / sqrt(128.0));
        check_matrix(&m->router, &n->router);
        check_vectors(&q.layers[i], &w.layers[i]);
    }
    check_matrix(&q.layers[3].attention.o, &w.layers[3].attention.o);
    check_matrix(&q.layers[0].gdn.qkv, &w.layers[0].gdn.qkv);
    double rms = check_matrix(&q.embedding, &w.embedding);
    assert_true(rms > 0.24 && rms < 0.26);
    rms = check_matrix(&q.head, &w.head) * 16; /* of logits, for inputs of size 1 */
    assert_true(rms > 3.1 && rms < 3.5);
    model_weights_close(&q);
    model_weights_close(&w);
    /* What bf16 is made for. */
    char c[256];
    snprintf(c, sizeof c, "%s/quantized", root);
    assert_ok(calla_quantize(b, c, NULL, &err), &err);
    assert_true(same_file(a, c, "tokenizer.json"));
}

static void test_layers(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    const int32_t depths[] = {1, 3, 0};
    for (int i = 0; i < 3; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, "%s/%d", root, depths[i]);
        calla_synth_options options = tiny;
        options.n_layers = depths[i];
        assert_ok(calla_synth(dir, &options, NULL, &err), &err);
        model_weights w;
        assert_ok(model_weights_open(dir, &w, &err), &err);
        int32_t n = depths[i] ? depths[i] : 8;
        assert_int_equal(w.config.n_layers, n);
        assert_int_equal(w.config.n_attention_layers, n / 4);
        model_weights_close(&w);
    }
    calla_synth_options options = tiny;
    options.n_layers = 257;
    assert_error(calla_synth(in(root, "x"), &options, NULL, &err), CALLA_ERR_INPUT, &err,
                 "257 layers");
}

/* MODEL.md 2.2: the 35B's 1 757 tensors. config.json alone, without the weights. */
static void test_35b_config(void **state)
{
    (void)state;
    char *text;
    size_t n;
    model_config c;
    const synth_shape *shape = synth_shape_find("35b");
    assert_ok(synth_config_text(shape, shape->n_layers, &text, &n, &err), &err);
    assert_ok(model_config_parse(text, n, "config.json", &c, &err), &err);
    free(text);
    assert_int_equal(c.hidden_size, 2048);
    assert_int_equal(c.n_layers, 40);
    assert_int_equal(c.n_attention_layers, 10);
    assert_int_equal(c.n_experts, 256);
    assert_int_equal(c.n_experts_per_token, 8);
    assert_int_equal(c.conv_channels, 8192);
    assert_int_equal(c.max_positions, 262144);
    assert_int_equal(c.stop_ids[0], 248044);
    assert_true(c.rope_theta == 1e7);
}

/* ---- tokenizer ---- */

static void write_tokenizer(const char *dir, const synth_shape *shape)
{
    char *text;
    size_t n;
    assert_ok(synth_tokenizer_text(shape, &text, &n, &err), &err);
    assert_ok(file_write(in(dir, "tokenizer.json"), text, n, &err), &err);
    free(text);
    assert_ok(synth_tokenizer_config_text(shape, &text, &n, &err), &err);
    assert_ok(file_write(in(dir, "tokenizer_config.json"), text, n, &err), &err);
    free(text);
    assert_ok(synth_generation_text(shape, &text, &n, &err), &err);
    assert_ok(file_write(in(dir, "generation_config.json"), text, n, &err), &err);
    free(text);
}

static int64_t encoded_length(const calla_tokenizer *t, const char *text)
{
    calla_tokens ids;
    calla_text back;
    assert_ok(calla_tokenizer_encode(t, text, strlen(text), NULL, 0, &ids, &err), &err);
    assert_ok(calla_tokenizer_decode(t, ids.ids, ids.n, false, &back, &err), &err);
    assert_string_equal(back.data, text);
    int64_t n = ids.n;
    calla_text_free(&back);
    calla_tokens_free(&ids);
    return n;
}

static int32_t only_id(const calla_tokenizer *t, const char *text)
{
    calla_tokens ids;
    assert_ok(calla_tokenizer_encode(t, text, strlen(text), NULL, 0, &ids, &err), &err);
    int32_t id = ids.n == 1 ? ids.ids[0] : -1;
    calla_tokens_free(&ids);
    return id;
}

/* Counts of MODEL.md 5.1, and merges whose parts and result are in the vocabulary, in rank order.
 */
static void check_merges(const char *dir, size_t n_base, size_t n_merges)
{
    json_t *root = json_load_file(in(dir, "tokenizer.json"), 0, NULL);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    json_t *merges = json_object_get(model, "merges");
    assert_int_equal(json_array_size(json_object_get(root, "added_tokens")), 26);
    assert_int_equal(json_object_size(vocab), n_base);
    assert_int_equal(json_array_size(merges), n_merges);
    for (size_t i = 0; i < n_merges; i += n_merges / 2000 + 1) {
        char text[512], *space;
        snprintf(text, sizeof text, "%s", json_string_value(json_array_get(merges, i)));
        space = strchr(text, ' ');
        assert_non_null(space);
        assert_null(strchr(space + 1, ' '));
        json_t *right = json_object_get(vocab, space + 1);
        *space = '\0';
        json_t *left = json_object_get(vocab, text);
        memmove(space, space + 1, strlen(space + 1) + 1);
        json_t *made = json_object_get(vocab, text);
        assert_true(json_is_integer(left) && json_is_integer(right));
        assert_true((size_t)json_integer_value(left) < 256 + i);
        assert_true((size_t)json_integer_value(right) < 256 + i);
        assert_int_equal(json_integer_value(made), 256 + i);
    }
    json_decref(root);
}

static const char english[] =
    "The capital of France is Paris, and the weather today is warm. I'm thinking about buying a "
    "new computer for my daughter's birthday; she has always wanted to learn how to write programs "
    "and understand the world around her.";

static void check_tokenizer(const char *shape_name, size_t n_merges, int64_t most_tokens)
{
    const synth_shape *shape = synth_shape_find(shape_name);
    const char *dir = temporary_dir();
    int32_t base = shape->n_base_tokens;
    write_tokenizer(dir, shape);
    check_merges(dir, (size_t)base, n_merges);
    calla_tokenizer *t;
    assert_ok(calla_tokenizer_open(dir, &t, &err), &err);
    assert_int_equal(calla_tokenizer_n_tokens(t), base + 33);
    assert_int_equal(calla_tokenizer_find(t, "<|im_start|>"), base + 1);
    assert_int_equal(calla_tokenizer_find(t, "<think>"), base + 24);
    assert_int_equal(calla_tokenizer_find(t, "<|audio_pad|>"), base + 32);
    assert_true(calla_tokenizer_is_stop(t, base) && calla_tokenizer_is_stop(t, base + 2));
    assert_true(calla_tokenizer_is_special(t, base + 26));
    assert_false(calla_tokenizer_is_special(t, base + 24));
    assert_int_equal(only_id(t, "\n"), 198); /* MODEL.md 5.4 */
    assert_int_equal(only_id(t, " "), 220);
    assert_int_equal(only_id(t, "7"), 22);
    assert_true(only_id(t, " the") > 255 && only_id(t, "ing") > 255);
    int64_t n = encoded_length(t, english);
    if (n > most_tokens) fail_msg("%lld tokens", (long long)n);
    encoded_length(t, "<|im_start|>user\n\t  \xe4\xb8\xad\xe6\x96\x87 caf\xc3\xa9\n\n<|im_end|>\n");
    calla_tokenizer_close(t);
}

static void test_tokenizer_tiny(void **state)
{
    (void)state;
    check_tokenizer("tiny", 3741, 70);
}

static void test_tokenizer_35b(void **state)
{
    (void)state;
    check_tokenizer("35b", 247587, 66);
}

/* ---- refusals and failures ---- */

static void test_refusals(void **state)
{
    (void)state;
    const char *root = temporary_dir();
    calla_synth_options options = {.shape = "7b"};
    assert_error(calla_synth(in(root, "x"), &options, NULL, &err), CALLA_ERR_INPUT, &err, "35b");
    assert_ok(file_write(in(root, "mine"), "x", 1, &err), &err);
    assert_error(calla_synth(root, &tiny, NULL, &err), CALLA_ERR_INPUT, &err, "mine");
    calla_write_options overwrite = {.overwrite = true};
    assert_ok(calla_synth(root, &tiny, &overwrite, &err), &err);
    assert_ok(calla_synth(root, &tiny, &overwrite, &err), &err);
    assert_int_equal(count_entries(root), N_FILES + 1);
}

static void test_disk_short(void **state)
{
    (void)state;
    const char *dir = in(temporary_dir(), "x");
    uint64_t available;
    assert_ok(disk_free_bytes("/tmp", &available, &err), &err);
    /* The largest that can be asked for, 430 GB. */
    calla_synth_options options = {.shape = "35b", .layout = CALLA_LAYOUT_BF16, .n_layers = 256};
    if (available > 400e9) skip();
    assert_error(calla_synth(dir, &options, NULL, &err), CALLA_ERR_IO, &err, "are needed");
    assert_int_equal(count_entries(dir), -1);
}

static void test_disk_full(void **state)
{
    (void)state;
    const char *dir = in(temporary_dir(), "x");
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 3000000;
    setrlimit(RLIMIT_FSIZE, &limit);
    calla_status status = calla_synth(dir, &tiny, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_error(status, CALLA_ERR_IO, &err, "model.safetensors: File too large");
    assert_int_equal(count_entries(dir), -1);
}

static atomic_bool stop;

static void stop_half_way(void *user, int64_t done, int64_t total)
{
    (void)user;
    if (done > total / 2) atomic_store(&stop, true);
}

static void test_cancel(void **state)
{
    (void)state;
    const char *dir = in(temporary_dir(), "x");
    calla_write_options options = {.cancel = &stop, .progress = stop_half_way};
    assert_error(calla_synth(dir, &tiny, &options, &err), CALLA_ERR_CANCELLED, &err, "cancelled");
    assert_int_equal(count_entries(dir), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),     cmocka_unit_test(test_layouts_agree),
        cmocka_unit_test(test_layers),         cmocka_unit_test(test_35b_config),
        cmocka_unit_test(test_tokenizer_tiny), cmocka_unit_test(test_tokenizer_35b),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_disk_short),
        cmocka_unit_test(test_disk_full),      cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
