#include "model/synth_shape.h"

#include "base/strbuf.h"

#include <string.h>

static const synth_shape shapes[] = {
    {.name = "35b",
     .hidden_size = 2048,
     .n_vocab = 248320,
     .n_layers = 40,
     .n_query_heads = 16,
     .n_kv_heads = 2,
     .n_key_heads = 16,
     .n_value_heads = 32,
     .n_experts = 256,
     .n_experts_per_token = 8,
     .expert_width = 512,
     .shared_expert_width = 512,
     .max_positions = 262144,
     .n_base_tokens = 248044,
     .n_unreachable = 201,
     .logit_deviation = 3.99f},
    {.name = "tiny",
     .hidden_size = 256,
     .n_vocab = 4096,
     .n_layers = 8,
     .n_query_heads = 4,
     .n_kv_heads = 2,
     .n_key_heads = 2,
     .n_value_heads = 4,
     .n_experts = 16,
     .n_experts_per_token = 4,
     .expert_width = 128,
     .shared_expert_width = 128,
     .max_positions = 32768,
     .n_base_tokens = 4000,
     .n_unreachable = 3,
     .logit_deviation = 3.26f},
};

const char synth_shape_names[] = "35b, tiny";

const synth_shape *synth_shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

static void put_text_config(strbuf *s, const synth_shape *h, int32_t n_layers)
{
    strbuf_printf(s,
                  "    \"attention_bias\": false,\n    \"attention_dropout\": 0.0,\n"
                  "    \"attn_output_gate\": true,\n    \"bos_token_id\": %d,\n"
                  "    \"dtype\": \"bfloat16\",\n    \"eos_token_id\": %d,\n"
                  "    \"full_attention_interval\": 4,\n    \"head_dim\": %d,\n"
                  "    \"hidden_act\": \"silu\",\n    \"hidden_size\": %d,\n"
                  "    \"initializer_range\": 0.02,\n    \"layer_types\": [",
                  h->n_base_tokens, h->n_base_tokens, ATTENTION_HEAD_DIM, h->hidden_size);
    for (int32_t i = 0; i < n_layers; i++)
        strbuf_printf(s, "%s\n      \"%s_attention\"", i ? "," : "",
                      i % 4 == 3 ? "full" : "linear");
    strbuf_printf(s,
                  "\n    ],\n    \"linear_conv_kernel_dim\": %d,\n"
                  "    \"linear_key_head_dim\": %d,\n    \"linear_num_key_heads\": %d,\n"
                  "    \"linear_num_value_heads\": %d,\n    \"linear_value_head_dim\": %d,\n"
                  "    \"mamba_ssm_dtype\": \"float32\",\n"
                  "    \"max_position_embeddings\": %d,\n"
                  "    \"model_type\": \"qwen3_5_moe_text\",\n"
                  "    \"moe_intermediate_size\": %d,\n    \"mtp_num_hidden_layers\": 1,\n"
                  "    \"mtp_use_dedicated_embeddings\": false,\n"
                  "    \"num_attention_heads\": %d,\n    \"num_experts\": %d,\n"
                  "    \"num_experts_per_tok\": %d,\n    \"num_hidden_layers\": %d,\n"
                  "    \"num_key_value_heads\": %d,\n    \"output_router_logits\": false,\n"
                  "    \"pad_token_id\": null,\n    \"partial_rotary_factor\": 0.25,\n"
                  "    \"rms_norm_eps\": 1e-06,\n",
                  CONV_TAPS, GDN_HEAD_DIM, h->n_key_heads, h->n_value_heads, GDN_HEAD_DIM,
                  h->max_positions, h->expert_width, h->n_query_heads, h->n_experts,
                  h->n_experts_per_token, n_layers, h->n_kv_heads);
    strbuf_printf(s,
                  "    \"rope_parameters\": {\n      \"mrope_interleaved\": true,\n"
                  "      \"mrope_section\": [\n        11,\n        11,\n        10\n      ],\n"
                  "      \"partial_rotary_factor\": 0.25,\n      \"rope_theta\": 10000000,\n"
                  "      \"rope_type\": \"default\"\n    },\n"
                  "    \"router_aux_loss_coef\": 0.001,\n"
                  "    \"shared_expert_intermediate_size\": %d,\n"
                  "    \"tie_word_embeddings\": false,\n    \"use_cache\": true,\n"
                  "    \"vocab_size\": %d\n",
                  h->shared_expert_width, h->n_vocab);
}

calla_status synth_config_text(const synth_shape *h, int32_t n_layers, char **text, size_t *n_bytes,
                               calla_error *err)
{
    strbuf s = {0};
    /* Ids of added tokens follow the base vocabulary in the order of MODEL.md 5.2. */
    int32_t image = h->n_base_tokens + 12, video = image + 1;
    int32_t start = h->n_base_tokens + 9, end = start + 1;
    strbuf_printf(&s,
                  "{\n  \"architectures\": [\n    \"Qwen3_5MoeForConditionalGeneration\"\n  ],\n"
                  "  \"image_token_id\": %d,\n  \"model_type\": \"qwen3_5_moe\",\n"
                  "  \"text_config\": {\n",
                  image);
    put_text_config(&s, h, n_layers);
    strbuf_printf(&s,
                  "  },\n  \"tie_word_embeddings\": false,\n"
                  "  \"transformers_version\": \"4.57.1\",\n  \"video_token_id\": %d,\n"
                  "  \"vision_end_token_id\": %d,\n  \"vision_start_token_id\": %d\n}\n",
                  video, end, start);
    return strbuf_take(&s, text, n_bytes, err);
}

calla_status synth_generation_text(const synth_shape *h, char **text, size_t *n_bytes,
                                   calla_error *err)
{
    strbuf s = {0};
    int32_t end_of_text = h->n_base_tokens, end_of_turn = end_of_text + 2;
    strbuf_printf(&s,
                  "{\n  \"bos_token_id\": %d,\n  \"do_sample\": true,\n  \"eos_token_id\": [\n"
                  "    %d,\n    %d\n  ],\n  \"pad_token_id\": %d,\n  \"temperature\": 1.0,\n"
                  "  \"top_k\": 20,\n  \"top_p\": 0.95,\n  \"transformers_version\": \"4.57.1\"\n"
                  "}\n",
                  end_of_text, end_of_turn, end_of_text, end_of_text);
    return strbuf_take(&s, text, n_bytes, err);
}
