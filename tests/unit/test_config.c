/* config.json: what is read, and every refusal with its message. */
#include "support/files.h"
#include "support/support.h"

#include "model/config.h"
#include "model/inventory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The published file's content (MODEL.md 1.2, 1.3) with what the MLX conversion adds. */
static const char full_size[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"image_token_id\": 248056,"
    "\"model_type\": \"qwen3_5_moe\", \"eos_token_id\": [248046, 248044],"
    "\"text_config\": {\"attention_bias\": false, \"attention_dropout\": 0.0,"
    "\"attn_output_gate\": true, \"bos_token_id\": 248044, \"dtype\": \"bfloat16\","
    "\"eos_token_id\": 248044, \"full_attention_interval\": 4, \"head_dim\": 256,"
    "\"hidden_act\": \"silu\", \"hidden_size\": 2048, \"initializer_range\": 0.02,"
    "\"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16,"
    "\"linear_num_value_heads\": 32, \"linear_value_head_dim\": 128,"
    "\"mamba_ssm_dtype\": \"float32\", \"max_position_embeddings\": 262144,"
    "\"model_type\": \"qwen3_5_moe_text\", \"moe_intermediate_size\": 512,"
    "\"mtp_num_hidden_layers\": 1, \"mtp_use_dedicated_embeddings\": false,"
    "\"num_attention_heads\": 16, \"num_experts\": 256, \"num_experts_per_tok\": 8,"
    "\"num_hidden_layers\": 40, \"num_key_value_heads\": 2, \"output_router_logits\": false,"
    "\"pad_token_id\": null, \"partial_rotary_factor\": 0.25, \"rms_norm_eps\": 1e-06,"
    "\"rope_parameters\": {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10],"
    "\"partial_rotary_factor\": 0.25, \"rope_theta\": 10000000, \"rope_type\": \"default\"},"
    "\"router_aux_loss_coef\": 0.001, \"shared_expert_intermediate_size\": 512,"
    "\"tie_word_embeddings\": false, \"use_cache\": true, \"vocab_size\": 248320},"
    "\"tie_word_embeddings\": false, \"transformers_version\": \"4.57.1\","
    "\"vision_config\": {\"depth\": 27, \"hidden_size\": 1152},"
    "\"quantization\": {\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\","
    "\"language_model.model.layers.0.mlp.gate\": {\"group_size\": 64, \"bits\": 8}}}";

static void parse(const char *text, model_config *config)
{
    calla_error err;
    assert_ok(model_config_parse(text, strlen(text), "config.json", config, &err), &err);
}

/* The full-size text with one edit is refused with a message that contains `message`. */
static void check_refused(const char *from, const char *to, const char *message)
{
    char *text = edit_text(full_size, &(text_edit){from, to}, 1);
    calla_error err;
    model_config config = {.hidden_size = 77};
    calla_status status = model_config_parse(text, strlen(text), "config.json", &config, &err);
    assert_error(status, CALLA_ERR_INPUT, &err, message);
    assert_memory_equal(err.message, "config.json", 11);
    assert_null(strchr(err.message, '\n'));
    assert_int_equal(config.hidden_size, 77); /* untouched */
    free(text);
}

static void check_accepted(const char *from, const char *to, model_config *config)
{
    char *text = edit_text(full_size, &(text_edit){from, to}, 1);
    parse(text, config);
    free(text);
}

static void test_full_size(void **state)
{
    (void)state;
    model_config c;
    parse(full_size, &c);
    assert_int_equal(c.layout, CALLA_LAYOUT_MLX4);
    assert_int_equal(c.hidden_size, 2048);
    assert_int_equal(c.n_vocab, 248320);
    assert_int_equal(c.n_layers, 40);
    assert_int_equal(c.n_attention_layers, 10);
    for (int i = 0; i < 40; i++) assert_int_equal(c.is_attention[i], i % 4 == 3);
    assert_int_equal(c.n_query_heads, 16);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.n_key_heads, 16);
    assert_int_equal(c.n_value_heads, 32);
    assert_int_equal(c.n_experts, 256);
    assert_int_equal(c.n_experts_per_token, 8);
    assert_int_equal(c.expert_width, 512);
    assert_int_equal(c.shared_expert_width, 512);
    assert_int_equal(c.max_positions, 262144);
    assert_true(c.rms_eps == 1e-6f);
    assert_true(c.rope_theta == 1e7);
    assert_int_equal(c.n_stop_ids, 2); /* the list at the top wins */
    assert_int_equal(c.stop_ids[0], 248046);
    assert_int_equal(c.stop_ids[1], 248044);
    assert_int_equal(c.query_size, 4096);
    assert_int_equal(c.kv_size, 512);
    assert_int_equal(c.key_size, 2048);
    assert_int_equal(c.value_size, 4096);
    assert_int_equal(c.conv_channels, 8192);
}

/* MODEL.md 2.1 and 2.2 give these totals; they equal the published files'. */
static void test_full_size_totals(void **state)
{
    (void)state;
    model_config c;
    model_sizes sizes;
    parse(full_size, &c);
    model_sizes_compute(&c, CALLA_LAYOUT_MLX4, &sizes);
    assert_int_equal(sizes.n_tensors, 1757);
    assert_int_equal(sizes.n_parameters, 34660610688);
    assert_int_equal(sizes.text_bytes, 19508787456);
    assert_int_equal(sizes.expert_bytes, 18119393280);
    assert_int_equal(sizes.token_bytes, 1669561728);
    model_sizes_compute(&c, CALLA_LAYOUT_BF16, &sizes);
    assert_int_equal(sizes.n_tensors, 1045 - 333 - 19);
    assert_int_equal(sizes.n_parameters, 34660610688);
    assert_int_equal(sizes.text_bytes, 2 * 34660610688);
    assert_int_equal(sizes.expert_bytes, 2ll * 40 * 256 * 3 * 512 * 2048);
}

static void test_oracle_configs(void **state)
{
    (void)state;
    calla_error err;
    model_config q, b;
    assert_ok(model_config_read(source_path("tests/data/oracle-a/mlx4"), &q, &err), &err);
    assert_ok(model_config_read(source_path("tests/data/oracle-a/bf16"), &b, &err), &err);
    assert_int_equal(q.layout, CALLA_LAYOUT_MLX4);
    assert_int_equal(b.layout, CALLA_LAYOUT_BF16);
    q.layout = b.layout;
    assert_memory_equal(&q, &b, sizeof q);
    assert_int_equal(b.n_stop_ids, 1);
    assert_int_equal(b.stop_ids[0], 319);
}

/* Other ways in which the same model's file is written. */
static void test_variants(void **state)
{
    (void)state;
    model_config c, full;
    parse(full_size, &full);
    static const text_edit same[] = {
        {"\"vision_config\": {\"depth\": 27, \"hidden_size\": 1152},", ""},
        {"\"quantization\":", "\"quantization_config\":"},
        {"\"head_dim\": 256,", ""},
        {"\"partial_rotary_factor\": 0.25, \"rms", "\"rms"},
        {"\"partial_rotary_factor\": 0.25, \"rope_theta\"", "\"rope_theta\""},
        {"\"rope_parameters\"", "\"rope_theta\": 10000000.0, \"rope_parameters\""},
        {"\"rope_parameters\": {", "\"rope_theta\": 10000000, \"rope_scaling\": null, \"x\": {"},
        {"\"hidden_act\"", "\"norm_topk_prob\": true, \"hidden_act\""},
        {"\"hidden_act\"", "\"mlp_only_layers\": [], \"decoder_sparse_step\": 1, \"hidden_act\""},
        {"\"hidden_act\"", "\"output_gate_type\": \"swish\", \"hidden_act\""},
        {"\"mode\": \"affine\"", "\"vision_tower.patch_embed\": {\"bits\": 8, \"group_size\": 32}"},
        {"\"mode\": \"affine\"",
         "\"language_model.model.layers.0.mlp.shared_expert.up_proj\": true"},
        {"\"mode\": \"affine\"", "\"language_model.lm_head\": {\"bits\": 4, \"group_size\": 64}"},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        check_accepted(same[i].from, same[i].to, &c);
        assert_memory_equal(&c, &full, sizeof c);
    }

    check_accepted("\"eos_token_id\": [248046, 248044],", "", &c);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.stop_ids[0], 248044);
    check_accepted("\"eos_token_id\": [248046, 248044],", "\"eos_token_id\": 7,", &c);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.stop_ids[0], 7);
    check_accepted("\"quantization\":", "\"x\":", &c);
    assert_int_equal(c.layout, CALLA_LAYOUT_BF16);
}

static void test_layer_types(void **state)
{
    (void)state;
    model_config c;
    text_edit edits[] = {
        {"\"full_attention_interval\": 4", "\"layer_types\": [\"full_attention\","
                                           "\"linear_attention\", \"full_attention\"]"},
        {"\"num_hidden_layers\": 40", "\"num_hidden_layers\": 3"},
    };
    char *text = edit_text(full_size, edits, 2);
    parse(text, &c);
    assert_true(c.is_attention[0] && !c.is_attention[1] && c.is_attention[2]);
    assert_int_equal(c.n_attention_layers, 2);
    free(text);

    static const struct {
        const char *types, *message;
    } bad[] = {
        {"[\"linear_attention\", \"full_attention\"]",
         "text_config.layer_types is [\"linear_attention\",\"full_attention\"], expected a list of "
         "num_hidden_layers = 3 names"},
        {"[\"linear_attention\", \"full_attention\", \"sliding\"]",
         "text_config.layer_types[2] is \"sliding\", expected \"linear_attention\" or"},
        {"[\"linear_attention\", \"full_attention\", 3]", "text_config.layer_types[2] is 3"},
        {"7", "text_config.layer_types is 7"},
        {"[\"linear_attention\", \"linear_attention\", \"full_attention\"], "
         "\"full_attention_interval\": 2",
         "layer_types[1] is \"linear_attention\", expected \"full_attention\" by "
         "full_attention_interval = 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char to[256];
        snprintf(to, sizeof to, "\"layer_types\": %s", bad[i].types);
        edits[0].to = to;
        text = edit_text(full_size, edits, 2);
        calla_error err;
        assert_error(model_config_parse(text, strlen(text), "c", &c, &err), CALLA_ERR_INPUT, &err,
                     bad[i].message);
        free(text);
    }
}

/* A text-only export has the fields at the top. */
static void test_text_only(void **state)
{
    (void)state;
    static const text_edit edits[] = {
        {"\"model_type\": \"qwen3_5_moe\", \"eos_token_id\": [248046, 248044],", ""},
        {"\"text_config\": {", ""},
        {"\"vocab_size\": 248320},\"tie_word_embeddings\": false,", "\"vocab_size\": 248320,"},
    };
    model_config c, full;
    parse(full_size, &full);
    char *text = edit_text(full_size, edits, 3);
    parse(text, &c);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.hidden_size, 2048);
    assert_int_equal(c.n_attention_layers, 10);
    free(text);
    check_refused("\"text_config\"", "\"other\"", "text_config is missing, expected an object");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"qwen3_5_moe\"", "\"llama\"",
         "config.json: model_type is \"llama\", expected \"qwen3_5_moe\""},
        {"\"qwen3_5_moe_text\"", "\"qwen3_next\"", "text_config.model_type is \"qwen3_next\""},
        {"\"head_dim\": 256", "\"head_dim\": 128",
         "config.json: text_config.head_dim is 128, expected 256"},
        {"\"hidden_size\": 2048", "\"hidden_size\": 2050",
         "hidden_size is 2050, expected a multiple of 64 from 64 to 65536"},
        {"\"hidden_size\": 2048", "\"hidden_size\": 0", "hidden_size is 0"},
        {"\"hidden_size\": 2048", "\"hidden_size\": -64", "hidden_size is -64"},
        {"\"hidden_size\": 2048", "\"hidden_size\": 4294967360", "hidden_size is 4294967360"},
        {"\"hidden_size\": 2048", "\"hidden_size\": 2048.0", "hidden_size is 2048.0"},
        {"\"hidden_size\": 2048", "\"hidden_size\": \"2048\"", "hidden_size is \"2048\""},
        {"\"hidden_size\": 2048,", "", "hidden_size is missing"},
        {"\"hidden_size\": 2048", "\"hidden_size\": null", "hidden_size is missing"},
        {"\"vocab_size\": 248320", "\"vocab_size\": 0",
         "vocab_size is 0, expected a whole number from 1 to"},
        {"\"vocab_size\": 248320", "\"vocab_size\": 99999999", "vocab_size is 99999999"},
        {"\"num_hidden_layers\": 40", "\"num_hidden_layers\": 257", "num_hidden_layers is 257"},
        {"\"num_hidden_layers\": 40", "\"num_hidden_layers\": 0", "num_hidden_layers is 0"},
        {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
         "num_attention_heads is 16, expected a multiple of 3"},
        {"\"num_attention_heads\": 16", "\"num_attention_heads\": 1", "num_attention_heads is 1"},
        {"\"linear_num_value_heads\": 32", "\"linear_num_value_heads\": 24",
         "linear_num_value_heads is 24, expected a multiple of 16"},
        {"\"linear_num_key_heads\": 16", "\"linear_num_key_heads\": 2000",
         "linear_num_key_heads is 2000"},
        {"\"linear_key_head_dim\": 128", "\"linear_key_head_dim\": 64",
         "linear_key_head_dim is 64, expected 128"},
        {"\"linear_value_head_dim\": 128", "\"linear_value_head_dim\": 256",
         "linear_value_head_dim is 256, expected 128"},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3",
         "linear_conv_kernel_dim is 3, expected 4"},
        {"\"num_experts\": 256", "\"num_experts\": 1025", "num_experts is 1025"},
        {"\"num_experts\": 256", "\"num_experts\": 4",
         "num_experts_per_tok is 8, expected a whole number from 1 to 4"},
        {"\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 65", "num_experts_per_tok is 65"},
        {"\"moe_intermediate_size\": 512", "\"moe_intermediate_size\": 96",
         "moe_intermediate_size is 96"},
        {"\"shared_expert_intermediate_size\": 512", "\"shared_expert_intermediate_size\": 32",
         "shared_expert_intermediate_size is 32"},
        {"\"max_position_embeddings\": 262144", "\"max_position_embeddings\": 0",
         "max_position_embeddings is 0"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0",
         "rms_norm_eps is 0, expected a number above 0"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": true", "rms_norm_eps is true"},
        {"\"attention_bias\": false", "\"attention_bias\": true",
         "attention_bias is true, expected false"},
        {"\"attn_output_gate\": true", "\"attn_output_gate\": false",
         "attn_output_gate is false, expected true"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"",
         "hidden_act is \"gelu\", expected \"silu\""},
        {"\"hidden_act\"", "\"norm_topk_prob\": false, \"hidden_act\"", "norm_topk_prob is false"},
        {"\"hidden_act\"", "\"mlp_only_layers\": [3], \"hidden_act\"",
         "mlp_only_layers is [3], expected an empty list"},
        {"\"hidden_act\"", "\"decoder_sparse_step\": 2, \"hidden_act\"",
         "decoder_sparse_step is 2, expected 1"},
        {"\"hidden_act\"", "\"output_gate_type\": \"sigmoid\", \"hidden_act\"",
         "output_gate_type is \"sigmoid\""},
        {"\"tie_word_embeddings\": false, \"use_cache\"",
         "\"tie_word_embeddings\": true, \"use_cache\"", "text_config.tie_word_embeddings is true"},
        {"\"tie_word_embeddings\": false, \"transformers",
         "\"tie_word_embeddings\": true, \"transformers", "json: tie_word_embeddings is true"},
        {"\"full_attention_interval\": 4, ", "", "full_attention_interval is missing"},
        {"\"full_attention_interval\": 4", "\"full_attention_interval\": 0",
         "full_attention_interval is 0"},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
         "text_config.rope_parameters.rope_type is \"yarn\""},
        {"\"rope_theta\": 10000000", "\"rope_theta\": -1", "rope_parameters.rope_theta is -1"},
        {"\"rope_theta\": 10000000, ", "", "text_config.rope_theta is missing"},
        {"\"rope_parameters\"", "\"rope_theta\": 10000, \"rope_parameters\"",
         "text_config.rope_theta is 10000, expected 10000000 as in rope_parameters"},
        {"\"rope_parameters\": {", "\"rope_parameters\": 3, \"x\": {",
         "rope_parameters is 3, expected an object"},
        {"\"rope_parameters\": {",
         "\"rope_scaling\": {\"type\": \"linear\"}, \"rope_theta\": 1e7, \"x\": {",
         "text_config.rope_scaling.type is \"linear\""},
        {"\"partial_rotary_factor\": 0.25, \"rope_theta\"",
         "\"partial_rotary_factor\": 0.5, \"rope_theta\"",
         "rope_parameters.partial_rotary_factor is 0.5, expected 0.25"},
        {"\"partial_rotary_factor\": 0.25, \"rms", "\"partial_rotary_factor\": 1.0, \"rms",
         "text_config.partial_rotary_factor is 1.0"},
        {"[248046, 248044]", "[248046, 248320]",
         "eos_token_id is [248046,248320], expected ids from 0 to vocab_size - 1 = 248319"},
        {"[248046, 248044]", "[248046, \"x\"]", "eos_token_id is [248046,\"x\"]"},
        {"[248046, 248044]", "-1", "eos_token_id is -1"},
        {"[248046, 248044]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
         "eos_token_id is [1,2,"},
        {"\"bits\": 4", "\"bits\": 3", "json: quantization.bits is 3, expected 4"},
        {"\"bits\": 4", "\"bits\": 8", "quantization.bits is 8, expected 4"},
        {"\"bits\": 4, ", "", "quantization.bits is missing"},
        {"\"group_size\": 64, \"bits\": 4", "\"group_size\": 32, \"bits\": 4",
         "quantization.group_size is 32, expected 64"},
        {"\"mode\": \"affine\"", "\"mode\": \"mxfp4\"",
         "quantization.mode is \"mxfp4\", expected \"affine\""},
        {"\"bits\": 8", "\"bits\": 4",
         "quantization.language_model.model.layers.0.mlp.gate.bits is 4, expected 8"},
        {"{\"group_size\": 64, \"bits\": 8}", "{\"group_size\": 32, \"bits\": 8}",
         "layers.0.mlp.gate.group_size is 32, expected 64"},
        {"{\"group_size\": 64, \"bits\": 8}", "false",
         "layers.0.mlp.gate is false, expected an entry with 8 bits"},
        {"layers.0.mlp.gate\"", "layers.0.self_attn.q_proj\"",
         "quantization.language_model.model.layers.0.self_attn.q_proj.bits is 8, expected 4"},
        {"layers.0.mlp.gate\": {\"group_size\": 64, \"bits\": 8}", "embed_tokens\": false",
         "embed_tokens is false, expected 4 bits"},
        {"\"quantization\": {",
         "\"quantization_config\": {\"quant_method\": \"fp8\"}, \"quantization\": {",
         "quantization_config.quant_method is \"fp8\", expected none"},
        {"\"quantization\": {",
         "\"quantization_config\": {\"bits\": 8, \"group_size\": 64}, \"quantization\": {",
         "quantization_config.bits is 8, expected 4"},
        {"\"quantization\": {", "\"quantization\": 4, \"x\": {",
         "quantization is 4, expected an object"},
        {"\"text_config\": {", "\"text_config\": 1, \"x\": {",
         "text_config is 1, expected an object"},
        {"\"model_type\": \"qwen3_5_moe\"",
         "\"vision_config\": {}, \"model_type\": \"qwen3_5_moe\"", "duplicate object key"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(cases[i].from, cases[i].to, cases[i].message);
}

static void test_not_json(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1"},
        {"{", "line 1"},
        {"{\"a\": 1,\n}", "line 2, column 1"},
        {"[]", "is not a JSON object"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
        {"{\"a\": NaN}", "invalid token"},
        {"{\"a\": \"\xff\"}", "decode"},
    };
    calla_error err;
    model_config c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_error(model_config_parse(cases[i].text, strlen(cases[i].text), "c.json", &c, &err),
                     CALLA_ERR_INPUT, &err, cases[i].message);
    char *deep = malloc(100001);
    assert_non_null(deep);
    memset(deep, '[', 100000);
    assert_error(model_config_parse(deep, 100000, "c.json", &c, &err), CALLA_ERR_INPUT, &err,
                 "maximum parsing depth");
    free(deep);
}

static void test_unreadable(void **state)
{
    (void)state;
    calla_error err;
    model_config c;
    assert_error(model_config_read("/nowhere", &c, &err), CALLA_ERR_IO, &err,
                 "cannot open directory /nowhere: No such file");
    assert_error(model_config_read("", &c, &err), CALLA_ERR_INPUT, &err, "directory is empty");
    char *big = calloc(1, (1 << 20) + 1);
    assert_non_null(big);
    const char *dir = temporary_dir();
    write_test_file(dir, "config.json", big, (1 << 20) + 1);
    free(big);
    assert_error(model_config_read(dir, &c, &err), CALLA_ERR_INPUT, &err, "1048577 bytes");
}

static void test_quantized_bits(void **state)
{
    (void)state;
    assert_int_equal(quantized_bits("language_model.model.layers.3.mlp.gate"), 8);
    assert_int_equal(quantized_bits("language_model.model.layers.3.mlp.shared_expert_gate"), 8);
    assert_int_equal(quantized_bits("language_model.model.layers.3.mlp.shared_expert.gate_proj"),
                     4);
    assert_int_equal(quantized_bits("language_model.model.layers.3.mlp.switch_mlp.gate_proj"), 4);
    assert_int_equal(quantized_bits("language_model.lm_head"), 4);
    assert_int_equal(quantized_bits("gate"), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_size),      cmocka_unit_test(test_full_size_totals),
        cmocka_unit_test(test_oracle_configs), cmocka_unit_test(test_variants),
        cmocka_unit_test(test_layer_types),    cmocka_unit_test(test_text_only),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_not_json),
        cmocka_unit_test(test_unreadable),     cmocka_unit_test(test_quantized_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
