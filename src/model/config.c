#include "model/config.h"

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_CONFIG_BYTES = 1 << 20,
    MAX_WIDTH = 1 << 16, /* hidden and expert widths */
    MAX_HEADS = 1 << 10,
    MAX_VOCABULARY = 1 << 24,
    MAX_POSITIONS = 1 << 30,
};

/* Where an object of the file stands, for messages: "text_config." before its keys. */
typedef struct section {
    const char *path;
    const char *prefix;
    json_t *object;
    calla_error *err;
} section;

/* ---- messages ---- */

/* A value as JSON, cut to a readable length. */
static const char *value_text(json_t *value, char buffer[64])
{
    if (!value) return "missing";
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return "unprintable";
    if (strlen(text) < 64) {
        memcpy(buffer, text, strlen(text) + 1);
    } else {
        memcpy(buffer, text, 60);
        memcpy(buffer + 60, "...", 4);
    }
    free(text);
    return buffer;
}

static calla_status refuse(const section *s, const char *key, json_t *value, const char *expected)
{
    char buffer[64];
    return error_set(s->err, CALLA_ERR_INPUT, "%s: %s%s is %s, expected %s", s->path, s->prefix,
                     key, value_text(value, buffer), expected);
}

/* ---- single fields ---- */

/* The field, or NULL where it is absent or null. */
static json_t *field(const section *s, const char *key)
{
    json_t *value = json_object_get(s->object, key);
    return json_is_null(value) ? NULL : value;
}

/* A required whole number in [low, high] that is a multiple of `multiple`. */
static calla_status take_int(const section *s, const char *key, int64_t low, int64_t high,
                             int64_t multiple, int32_t *out)
{
    json_t *value = field(s, key);
    int64_t v = json_integer_value(value);
    if (!json_is_integer(value) || v < low || v > high || v % multiple != 0) {
        char expected[96];
        if (multiple > 1)
            snprintf(expected, sizeof expected, "a multiple of %lld from %lld to %lld",
                     (long long)multiple, (long long)low, (long long)high);
        else
            snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low,
                     (long long)high);
        return refuse(s, key, value, expected);
    }
    *out = (int32_t)v;
    return CALLA_OK;
}

/* The architecture fixes these: absent, or exactly the value. */
static calla_status expect_int(const section *s, const char *key, int64_t expected)
{
    json_t *value = field(s, key);
    if (!value || (json_is_integer(value) && json_integer_value(value) == expected))
        return CALLA_OK;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)expected);
    return refuse(s, key, value, text);
}

static calla_status expect_bool(const section *s, const char *key, bool expected)
{
    json_t *value = field(s, key);
    if (!value || (json_is_boolean(value) && json_is_true(value) == expected)) return CALLA_OK;
    return refuse(s, key, value, expected ? "true" : "false");
}

static calla_status expect_string(const section *s, const char *key, const char *expected)
{
    json_t *value = field(s, key);
    if (!value || json_is_text(value, expected)) return CALLA_OK;
    char text[64];
    snprintf(text, sizeof text, "\"%s\"", expected);
    return refuse(s, key, value, text);
}

/* A number in (low, high]. */
static calla_status take_real(const section *s, const char *key, double low, double high,
                              double *out)
{
    json_t *value = field(s, key);
    double v = json_number_value(value);
    if (!json_is_number(value) || !(v > low && v <= high)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a number above %g, at most %g", low, high);
        return refuse(s, key, value, expected);
    }
    *out = v;
    return CALLA_OK;
}

/* ---- parts of text_config ---- */

static calla_status parse_sizes(const section *t, model_config *c)
{
    CALLA_TRY(take_int(t, "hidden_size", 64, MAX_WIDTH, 64, &c->hidden_size));
    CALLA_TRY(take_int(t, "vocab_size", 1, MAX_VOCABULARY, 1, &c->n_vocab));
    CALLA_TRY(take_int(t, "num_hidden_layers", 1, MAX_LAYERS, 1, &c->n_layers));
    CALLA_TRY(take_int(t, "num_key_value_heads", 1, MAX_HEADS, 1, &c->n_kv_heads));
    CALLA_TRY(take_int(t, "num_attention_heads", c->n_kv_heads, MAX_HEADS, c->n_kv_heads,
                       &c->n_query_heads));
    CALLA_TRY(take_int(t, "linear_num_key_heads", 1, MAX_HEADS, 1, &c->n_key_heads));
    CALLA_TRY(take_int(t, "linear_num_value_heads", c->n_key_heads, MAX_HEADS, c->n_key_heads,
                       &c->n_value_heads));
    CALLA_TRY(take_int(t, "num_experts", 1, MAX_EXPERTS, 1, &c->n_experts));
    int32_t most = c->n_experts < MAX_EXPERTS_PER_TOKEN ? c->n_experts : MAX_EXPERTS_PER_TOKEN;
    CALLA_TRY(take_int(t, "num_experts_per_tok", 1, most, 1, &c->n_experts_per_token));
    CALLA_TRY(take_int(t, "moe_intermediate_size", 64, MAX_WIDTH, 64, &c->expert_width));
    CALLA_TRY(
        take_int(t, "shared_expert_intermediate_size", 64, MAX_WIDTH, 64, &c->shared_expert_width));
    CALLA_TRY(take_int(t, "max_position_embeddings", 1, MAX_POSITIONS, 1, &c->max_positions));
    double eps;
    CALLA_TRY(take_real(t, "rms_norm_eps", 0, 0.1, &eps));
    c->rms_eps = (float)eps;
    c->query_size = c->n_query_heads * ATTENTION_HEAD_DIM;
    c->kv_size = c->n_kv_heads * ATTENTION_HEAD_DIM;
    c->key_size = c->n_key_heads * GDN_HEAD_DIM;
    c->value_size = c->n_value_heads * GDN_HEAD_DIM;
    c->conv_channels = 2 * c->key_size + c->value_size;
    return CALLA_OK;
}

/* What the architecture fixes. */
static calla_status check_architecture(const section *t)
{
    CALLA_TRY(expect_int(t, "head_dim", ATTENTION_HEAD_DIM));
    CALLA_TRY(expect_int(t, "linear_key_head_dim", GDN_HEAD_DIM));
    CALLA_TRY(expect_int(t, "linear_value_head_dim", GDN_HEAD_DIM));
    CALLA_TRY(expect_int(t, "linear_conv_kernel_dim", CONV_TAPS));
    CALLA_TRY(expect_int(t, "decoder_sparse_step", 1));
    CALLA_TRY(expect_bool(t, "attention_bias", false));
    CALLA_TRY(expect_bool(t, "attn_output_gate", true));
    CALLA_TRY(expect_bool(t, "norm_topk_prob", true));
    CALLA_TRY(expect_bool(t, "tie_word_embeddings", false));
    CALLA_TRY(expect_string(t, "hidden_act", "silu"));
    json_t *gate = field(t, "output_gate_type"); /* of the GDN norm; both names mean SiLU */
    if (gate && !json_is_text(gate, "swish") && !json_is_text(gate, "silu"))
        return refuse(t, "output_gate_type", gate, "\"swish\"");
    json_t *dense = field(t, "mlp_only_layers");
    if (dense && (!json_is_array(dense) || json_array_size(dense) > 0))
        return refuse(t, "mlp_only_layers", dense, "an empty list");
    return CALLA_OK;
}

/* layer_types, full_attention_interval, or both in agreement. */
static calla_status parse_layer_types(const section *t, model_config *c)
{
    json_t *types = field(t, "layer_types");
    int32_t interval = 0;
    if (field(t, "full_attention_interval") || !types)
        CALLA_TRY(take_int(t, "full_attention_interval", 1, MAX_LAYERS, 1, &interval));
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a list of num_hidden_layers = %d names", c->n_layers);
        return refuse(t, "layer_types", types, expected);
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        bool by_interval = interval && (i + 1) % interval == 0;
        c->is_attention[i] = by_interval;
        if (types) {
            char key[32];
            snprintf(key, sizeof key, "layer_types[%d]", i);
            json_t *type = json_array_get(types, (size_t)i);
            c->is_attention[i] = json_is_text(type, "full_attention");
            if (!c->is_attention[i] && !json_is_text(type, "linear_attention"))
                return refuse(t, key, type, "\"linear_attention\" or \"full_attention\"");
            if (interval && c->is_attention[i] != by_interval) {
                char expected[96];
                snprintf(expected, sizeof expected, "\"%s\" by full_attention_interval = %d",
                         by_interval ? "full_attention" : "linear_attention", interval);
                return refuse(t, key, type, expected);
            }
        }
        c->n_attention_layers += c->is_attention[i];
    }
    return CALLA_OK;
}

static calla_status check_rotary_factor(const section *s)
{
    json_t *value = field(s, "partial_rotary_factor");
    double expected = (double)ROTARY_DIMS / ATTENTION_HEAD_DIM;
    if (json_is_number(value) && json_number_value(value) == expected) return CALLA_OK;
    return refuse(s, "partial_rotary_factor", value, "0.25");
}

/* rope_parameters, or the older rope_theta and partial_rotary_factor beside the other fields. */
static calla_status parse_rope(const section *t, model_config *c)
{
    char prefix[64];
    const char *name = field(t, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    json_t *object = field(t, name);
    snprintf(prefix, sizeof prefix, "%s%s.", t->prefix, name);
    section r = {t->path, prefix, object, t->err};
    if (object) {
        if (!json_is_object(object)) return refuse(t, name, object, "an object");
        CALLA_TRY(expect_string(&r, "rope_type", "default"));
        CALLA_TRY(expect_string(&r, "type", "default"));
    }
    bool inner_theta = object && field(&r, "rope_theta");
    bool inner_factor = object && field(&r, "partial_rotary_factor");
    if (inner_theta) CALLA_TRY(take_real(&r, "rope_theta", 1, 1e12, &c->rope_theta));
    if (inner_factor) CALLA_TRY(check_rotary_factor(&r));
    if (!inner_theta || field(t, "rope_theta")) {
        double theta;
        CALLA_TRY(take_real(t, "rope_theta", 1, 1e12, &theta));
        if (inner_theta && theta != c->rope_theta) {
            char expected[96];
            snprintf(expected, sizeof expected, "%.17g as in rope_parameters", c->rope_theta);
            return refuse(t, "rope_theta", field(t, "rope_theta"), expected);
        }
        c->rope_theta = theta;
    }
    if (!inner_factor || field(t, "partial_rotary_factor")) CALLA_TRY(check_rotary_factor(t));
    return CALLA_OK;
}

/* ---- top level ---- */

static calla_status parse_stop_ids(const section *s, model_config *c)
{
    json_t *value = field(s, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MAX_STOP_IDS) return refuse(s, "eos_token_id", value, "at most 16 ids");
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= c->n_vocab) {
            char expected[64];
            snprintf(expected, sizeof expected, "ids from 0 to vocab_size - 1 = %d",
                     c->n_vocab - 1);
            return refuse(s, "eos_token_id", value, expected);
        }
        c->stop_ids[c->n_stop_ids++] = (int32_t)v;
    }
    return CALLA_OK;
}

int quantized_bits(const char *stem)
{
    return text_ends_with(stem, "mlp.gate") || text_ends_with(stem, "mlp.shared_expert_gate") ? 8
                                                                                              : 4;
}

/* One per-path entry: an object with bits and group_size, or a boolean. */
static calla_status check_quantized_path(const section *q, const char *key, json_t *value)
{
    int bits = quantized_bits(key);
    if (json_is_object(value)) {
        char prefix[512];
        snprintf(prefix, sizeof prefix, "%s%s.", q->prefix, key);
        section entry = {q->path, prefix, value, q->err};
        int32_t found;
        CALLA_TRY(take_int(&entry, "bits", 1, 32, 1, &found));
        CALLA_TRY(expect_int(&entry, "bits", bits));
        CALLA_TRY(expect_int(&entry, "group_size", QUANT_GROUP));
        return expect_string(&entry, "mode", "affine");
    }
    if (json_is_true(value) && bits == 4) return CALLA_OK;
    return refuse(q, key, value, bits == 4 ? "4 bits" : "an entry with 8 bits");
}

/* MLX's description of what is quantised how: 4 bits in groups of 64, and 8 bits for the routers.
 * Anything else (a mixed build, another method) has tensors this program cannot read. */
static calla_status check_quantization(const section *top, const char *name)
{
    json_t *object = field(top, name);
    if (!object) return CALLA_OK;
    if (!json_is_object(object)) return refuse(top, name, object, "an object");
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s.", top->prefix, name);
    section q = {top->path, prefix, object, top->err};
    if (field(&q, "quant_method"))
        return refuse(&q, "quant_method", field(&q, "quant_method"),
                      "none (an MLX 4-bit or an unquantised checkpoint)");
    int32_t found;
    CALLA_TRY(take_int(&q, "bits", 1, 32, 1, &found));
    CALLA_TRY(expect_int(&q, "bits", 4));
    CALLA_TRY(take_int(&q, "group_size", 1, MAX_WIDTH, 1, &found));
    CALLA_TRY(expect_int(&q, "group_size", QUANT_GROUP));
    CALLA_TRY(expect_string(&q, "mode", "affine"));
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool path = json_is_object(value) || json_is_boolean(value);
        if (path && !is_skipped_name(key)) CALLA_TRY(check_quantized_path(&q, key, value));
    }
    return CALLA_OK;
}

bool is_skipped_name(const char *name)
{
    static const char *const prefixes[] = {
        "vision_tower.", "model.visual.", "visual.", "mtp.", "model.mtp.", "language_model.mtp.",
    };
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    }
    return false;
}

static calla_status parse_root(const section *top, model_config *c)
{
    section t = {top->path, "text_config.", field(top, "text_config"), top->err};
    if (t.object) {
        if (!json_is_object(t.object)) return refuse(top, "text_config", t.object, "an object");
        json_t *type = field(top, "model_type");
        if (!json_is_text(type, "qwen3_5_moe"))
            return refuse(top, "model_type", type, "\"qwen3_5_moe\"");
        CALLA_TRY(expect_bool(top, "tie_word_embeddings", false));
    } else { /* a text-only export: the same fields at the top */
        json_t *type = field(top, "model_type");
        if (!json_is_text(type, "qwen3_5_moe_text"))
            return refuse(top, json_is_text(type, "qwen3_5_moe") ? "text_config" : "model_type",
                          json_is_text(type, "qwen3_5_moe") ? NULL : type,
                          json_is_text(type, "qwen3_5_moe") ? "an object" : "\"qwen3_5_moe\"");
        t.prefix = "";
        t.object = top->object;
    }
    CALLA_TRY(expect_string(&t, "model_type", "qwen3_5_moe_text"));
    CALLA_TRY(parse_sizes(&t, c));
    CALLA_TRY(check_architecture(&t));
    CALLA_TRY(parse_layer_types(&t, c));
    CALLA_TRY(parse_rope(&t, c));
    if (field(top, "eos_token_id"))
        CALLA_TRY(parse_stop_ids(top, c));
    else if (field(&t, "eos_token_id"))
        CALLA_TRY(parse_stop_ids(&t, c));
    CALLA_TRY(check_quantization(top, "quantization"));
    CALLA_TRY(check_quantization(top, "quantization_config"));
    bool quantized = field(top, "quantization") || field(top, "quantization_config");
    c->layout = quantized ? CALLA_LAYOUT_MLX4 : CALLA_LAYOUT_BF16;
    return CALLA_OK;
}

calla_status model_config_parse(const char *text, size_t n_bytes, const char *path,
                                model_config *config, calla_error *err)
{
    json_error_t where;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return error_set(err, CALLA_ERR_INPUT, "%s: line %d, column %d: %s", path, where.line,
                         where.column, where.text);
    calla_status status;
    model_config c = {0};
    if (!json_is_object(root)) {
        status = error_set(err, CALLA_ERR_INPUT, "%s is not a JSON object", path);
    } else {
        section top = {path, "", root, err};
        status = parse_root(&top, &c);
    }
    if (status == CALLA_OK) *config = c;
    json_decref(root);
    return status;
}

calla_status model_config_read(const char *dir, model_config *config, calla_error *err)
{
    CALLA_TRY(dir_check(dir, err));
    char *path = path_join(dir, "config.json"), *text;
    if (!path) return error_set(err, CALLA_ERR_MEMORY, "no memory for the name of config.json");
    size_t n;
    calla_status status = file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (status == CALLA_OK) {
        status = model_config_parse(text, n, path, config, err);
        free(text);
    }
    free(path);
    return status;
}
