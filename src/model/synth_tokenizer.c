#include "model/synth_tokenizer.h"

#include "base/strbuf.h"
#include "model/synth_vocabulary.h"

/* MODEL.md 5.2, in the order of the ids. */
static const struct added_token {
    const char *text;
    bool special;
} added_tokens[N_ADDED_TOKENS] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

/* MODEL.md 5.3 step 3, escaped for JSON. */
static const char pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}"
    "| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+";

/* A byte as the character that stands for it in the file (MODEL.md 5.3 step 4), JSON-escaped. */
static void put_byte(strbuf *s, unsigned char byte)
{
    uint32_t c = byte;
    if (c <= 32)
        c = 0x100 + c;
    else if (c >= 127 && c <= 160)
        c = 0x121 + c - 127;
    else if (c == 173)
        c = 0x143;
    if (c == '"' || c == '\\') strbuf_putc(s, '\\');
    if (c < 0x80) {
        strbuf_putc(s, (char)c);
    } else {
        strbuf_putc(s, (char)(0xc0 | c >> 6));
        strbuf_putc(s, (char)(0x80 | (c & 0x3f)));
    }
}

static void put_token(strbuf *s, const vocabulary *v, int32_t id)
{
    const vocabulary_token *t = &v->tokens[id];
    for (uint32_t i = 0; i < t->n_bytes; i++) put_byte(s, (unsigned char)v->bytes[t->offset + i]);
}

static void put_flags(strbuf *s, const char *indent, const struct added_token *t)
{
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (int i = 0; i < 4; i++) strbuf_printf(s, "%s\"%s\": false,\n", indent, names[i]);
    strbuf_printf(s, "%s\"special\": %s\n", indent, t->special ? "true" : "false");
}

static void put_added_tokens(strbuf *s, int32_t first_id)
{
    for (int32_t i = 0; i < N_ADDED_IN_TOKENIZER; i++) {
        strbuf_printf(s, "%s\n    {\n      \"id\": %d,\n      \"content\": \"%s\",\n", i ? "," : "",
                      first_id + i, added_tokens[i].text);
        put_flags(s, "      ", &added_tokens[i]);
        strbuf_puts(s, "    }");
    }
}

static void put_stages(strbuf *s)
{
    static const char byte_level[] = "\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                     "\"trim_offsets\": false, \"use_regex\": false";
    strbuf_puts(s, "  \"normalizer\": {\"type\": \"NFC\"},\n");
    strbuf_printf(s,
                  "  \"pre_tokenizer\": {\n    \"type\": \"Sequence\",\n    \"pretokenizers\": [\n"
                  "      {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
                  "\"behavior\": \"Isolated\", \"invert\": false},\n      {%s}\n    ]\n  },\n",
                  pattern, byte_level);
    strbuf_printf(s, "  \"post_processor\": {%s},\n  \"decoder\": {%s},\n", byte_level, byte_level);
}

static void put_model(strbuf *s, const vocabulary *v)
{
    strbuf_puts(s, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                   "    \"unk_token\": null,\n    \"continuing_subword_prefix\": \"\",\n"
                   "    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": false,\n"
                   "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
                   "    \"vocab\": {");
    for (int32_t i = 0; i < v->n_tokens; i++) {
        strbuf_puts(s, i ? ",\n      \"" : "\n      \"");
        put_token(s, v, i);
        strbuf_printf(s, "\": %d", i);
    }
    strbuf_puts(s, "\n    },\n    \"merges\": [");
    for (int32_t i = 0, n = 0; i < v->n_tokens; i++) {
        if (v->tokens[i].left < 0) continue;
        strbuf_puts(s, n++ ? ",\n      \"" : "\n      \"");
        put_token(s, v, v->tokens[i].left);
        strbuf_putc(s, ' ');
        put_token(s, v, v->tokens[i].right);
        strbuf_putc(s, '"');
    }
    strbuf_puts(s, "\n    ]\n  }\n");
}

calla_status synth_tokenizer_text(const synth_shape *shape, char **text, size_t *n_bytes,
                                  calla_error *err)
{
    vocabulary v;
    strbuf s = {0};
    CALLA_TRY(vocabulary_create(shape->n_base_tokens, shape->n_unreachable, &v, err));
    strbuf_puts(&s, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                    "  \"added_tokens\": [");
    put_added_tokens(&s, shape->n_base_tokens);
    strbuf_puts(&s, "\n  ],\n");
    put_stages(&s);
    put_model(&s, &v);
    strbuf_puts(&s, "}\n");
    vocabulary_free(&v);
    return strbuf_take(&s, text, n_bytes, err);
}

calla_status synth_tokenizer_config_text(const synth_shape *shape, char **text, size_t *n_bytes,
                                         calla_error *err)
{
    strbuf s = {0};
    strbuf_puts(&s, "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                    "  \"added_tokens_decoder\": {");
    for (int32_t i = 0; i < N_ADDED_TOKENS; i++) {
        strbuf_printf(&s, "%s\n    \"%d\": {\n      \"content\": \"%s\",\n", i ? "," : "",
                      shape->n_base_tokens + i, added_tokens[i].text);
        put_flags(&s, "      ", &added_tokens[i]);
        strbuf_puts(&s, "    }");
    }
    strbuf_printf(&s,
                  "\n  },\n  \"bos_token\": null,\n  \"clean_up_tokenization_spaces\": false,\n"
                  "  \"eos_token\": \"<|im_end|>\",\n  \"errors\": \"replace\",\n"
                  "  \"model_max_length\": %d,\n  \"pad_token\": \"<|endoftext|>\",\n"
                  "  \"split_special_tokens\": false,\n"
                  "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n",
                  shape->max_positions);
    return strbuf_take(&s, text, n_bytes, err);
}
