/* calla/model.h: what works on a checkpoint directory without an engine: tokenizer, chat template
 * and its inverse, inspection, quantizer, synthetic checkpoints. Same rules as calla.h: status
 * codes, one-line errors with values, UTF-8, sizes in bytes. Objects here are immutable after
 * creation unless stated otherwise and may then be shared between threads. */
#ifndef CALLA_MODEL_H
#define CALLA_MODEL_H

#include <calla/calla.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- buffers handed to the caller ---- */

/* Bytes owned by the caller: free with calla_text_free. `data` is NUL-terminated; the NUL is not
 * counted in n_bytes, and the text may contain NUL bytes itself. */
typedef struct calla_text {
    char *data;
    size_t n_bytes;
} calla_text;
CALLA_API void calla_text_free(calla_text *text);

/* Ids owned by the caller: free with calla_tokens_free. */
typedef struct calla_tokens {
    int32_t *ids; /* [n] */
    int64_t n;
} calla_tokens;
CALLA_API void calla_tokens_free(calla_tokens *tokens);

/* A half-open range of byte offsets in a text. */
typedef struct calla_range {
    size_t begin, end;
} calla_range;

/* ---- tokenizer (MODEL.md 5) ---- */

typedef struct calla_tokenizer calla_tokenizer;

/* Reads dir/tokenizer.json, the added tokens of dir/tokenizer_config.json and the stop ids of
 * dir/generation_config.json and dir/config.json (the last three where present). */
CALLA_API calla_status calla_tokenizer_open(const char *dir, calla_tokenizer **tokenizer,
                                            calla_error *err);
CALLA_API void calla_tokenizer_close(calla_tokenizer *tokenizer);

/* Text to ids. Added tokens (`<|im_start|>` ...) are recognised except where a match would overlap
 * one of literal[n_literal] (ascending, disjoint): text there is text. Invalid UTF-8 is replaced by
 * U+FFFD as Python's errors="replace" does. Time is linear in n_bytes with the patterns that the
 * model's files carry. A text above 1 GiB is CALLA_ERR_INPUT. */
CALLA_API calla_status calla_tokenizer_encode(const calla_tokenizer *tokenizer, const char *text,
                                              size_t n_bytes, const calla_range *literal,
                                              size_t n_literal, calla_tokens *tokens,
                                              calla_error *err);

/* Ids to text. Invalid sequences become U+FFFD. skip_special leaves out tokens marked special. An
 * id that is no token is CALLA_ERR_INPUT. */
CALLA_API calla_status calla_tokenizer_decode(const calla_tokenizer *tokenizer, const int32_t *ids,
                                              int64_t n, bool skip_special, calla_text *text,
                                              calla_error *err);

/* Ids below this are real tokens (the rest of the model's vocabulary is padding). */
CALLA_API int32_t calla_tokenizer_n_tokens(const calla_tokenizer *tokenizer);
/* The id of an added token by its text, or -1. */
CALLA_API int32_t calla_tokenizer_find(const calla_tokenizer *tokenizer, const char *text);
/* Whether generation ends at this id: `<|im_end|>`, `<|endoftext|>` or an eos id of the configs. */
CALLA_API bool calla_tokenizer_is_stop(const calla_tokenizer *tokenizer, int32_t id);
CALLA_API bool calla_tokenizer_is_special(const calla_tokenizer *tokenizer, int32_t id);
/* The bytes of one token (not necessarily whole UTF-8 sequences), owned by the tokenizer. An id out
 * of range gives n_bytes 0. */
CALLA_API const char *calla_tokenizer_bytes(const calla_tokenizer *tokenizer, int32_t id,
                                            size_t *n_bytes);

/* Streaming decoder: holds back bytes until they form whole UTF-8 sequences (at most 3 bytes). One
 * per stream; zero-initialise. */
typedef struct calla_utf8_stream {
    unsigned char held[4];
    int32_t n_held;
} calla_utf8_stream;
/* Appends a token's bytes and gives the text that is now complete: *text owned by the caller,
 * possibly empty. calla_utf8_stream_finish gives what is left (U+FFFD for a broken tail). */
CALLA_API calla_status calla_utf8_stream_push(calla_utf8_stream *stream, const char *bytes,
                                              size_t n_bytes, calla_text *text, calla_error *err);
CALLA_API calla_status calla_utf8_stream_finish(calla_utf8_stream *stream, calla_text *text,
                                                calla_error *err);

/* ---- chat: messages to prompt (MODEL.md 6) ---- */

typedef struct calla_chat_options {
    bool no_thinking;          /* enable_thinking=false: the prompt closes the thinking block */
    bool preserve_thinking;    /* keep the reasoning of earlier turns */
    bool no_generation_prompt; /* end after the last message */
    bool strict; /* the official template's errors for developer messages, later system
                    messages and string arguments, instead of accepting them */
} calla_chat_options;

typedef struct calla_prompt {
    calla_text text;
    calla_range
        *literal; /* [n_literal] parts that came from messages and tools, not the template */
    size_t n_literal;
} calla_prompt;
CALLA_API void calla_prompt_free(calla_prompt *prompt);

/* Renders a JSON array of messages (OpenAI's form: role, content, reasoning_content, tool_calls)
 * and an optional JSON array of tools (NULL, 0 = none) as the model's official template does, byte
 * for byte. `options` NULL means the defaults. Unless strict, system and developer messages are
 * merged into one at the start, joined by an empty line, string arguments are parsed, and anything
 * but text is refused. Errors name the place: "messages[2].content[1]: ...". */
CALLA_API calla_status calla_chat_render(const char *messages, size_t n_messages_bytes,
                                         const char *tools, size_t n_tools_bytes,
                                         const calla_chat_options *options, calla_prompt *prompt,
                                         calla_error *err);

/* ---- chat: generated text to events ---- */

typedef enum calla_chat_event_kind {
    CALLA_CHAT_REASONING,      /* text: a piece of reasoning */
    CALLA_CHAT_CONTENT,        /* text: a piece of the answer */
    CALLA_CHAT_TOOL_BEGIN,     /* text: the function's name, whole */
    CALLA_CHAT_TOOL_ARGUMENTS, /* text: a piece of JSON; a call's pieces concatenate to an object */
    CALLA_CHAT_TOOL_END,
} calla_chat_event_kind;

typedef struct calla_chat_event {
    calla_chat_event_kind kind;
    int32_t tool_index; /* 0, 1 ... for the three tool events */
    const char *text;   /* [n_bytes], borrowed during the callback, whole UTF-8 sequences */
    size_t n_bytes;
} calla_chat_event;
typedef void (*calla_chat_event_fn)(void *user, const calla_chat_event *event);

typedef struct calla_chat_parser calla_chat_parser;

/* A streaming parser for the text generated after `prompt` (its end says whether the model starts
 * inside a thinking block). `tools` as in calla_chat_render: argument values are converted to the
 * schema's types where they parse as such, else kept as strings; without a type in the schema, what
 * is a JSON value other than a string becomes one. A call inside the thinking ends it, if it names
 * one of the tools (or none are given). The concatenated events do not depend on how the text is
 * cut into pieces. Malformed output is never an error: what cannot be a tool call stays content,
 * and a call that breaks off is closed as valid JSON. */
CALLA_API calla_status calla_chat_parser_create(const char *prompt, size_t n_prompt_bytes,
                                                const char *tools, size_t n_tools_bytes,
                                                calla_chat_event_fn event, void *user,
                                                calla_chat_parser **parser, calla_error *err);
CALLA_API void calla_chat_parser_free(calla_chat_parser *parser);
CALLA_API calla_status calla_chat_parser_push(calla_chat_parser *parser, const char *text,
                                              size_t n_bytes, calla_error *err);
/* The end of the generated text: flushes what was held back. */
CALLA_API calla_status calla_chat_parser_finish(calla_chat_parser *parser, calla_error *err);

/* ---- stop texts ---- */

/* Looks for texts that end an answer while it comes in. What is held back is never more than the
 * longest end of the text that a stop text may still begin with. */
typedef struct calla_stop_matcher calla_stop_matcher;

/* stops[n]: NUL-terminated, not empty, copied. n 0: everything passes at once. */
CALLA_API calla_status calla_stop_matcher_create(const char *const *stops, int32_t n,
                                                 calla_stop_matcher **matcher, calla_error *err);
CALLA_API void calla_stop_matcher_free(calla_stop_matcher *matcher);
/* Takes the next piece of the answer and gives in text [*n_ready] what is certain to belong to it,
 * borrowed until the next call. *stopped: a stop text was found, the one that was complete first;
 * the answer ends before it, and what is pushed from then on gives nothing. The pieces given do not
 * depend, concatenated, on how the answer was cut. */
CALLA_API calla_status calla_stop_matcher_push(calla_stop_matcher *matcher, const char *text,
                                               size_t n_bytes, const char **ready, size_t *n_ready,
                                               bool *stopped, calla_error *err);
/* The text ended: gives what was held back, and is ready for another text (unless stopped). */
CALLA_API void calla_stop_matcher_flush(calla_stop_matcher *matcher, const char **ready,
                                        size_t *n_ready);

/* ---- checkpoint inspection ---- */

typedef enum calla_layout { CALLA_LAYOUT_MLX4, CALLA_LAYOUT_BF16 } calla_layout;

typedef struct calla_checkpoint_info {
    calla_layout layout;
    int32_t n_layers, n_attention_layers, hidden_size, n_vocab;
    int32_t n_query_heads, n_kv_heads, n_key_heads, n_value_heads;
    int32_t n_experts, n_experts_per_token, expert_width, shared_expert_width;
    int32_t max_positions;
    int32_t n_files, n_tensors, n_skipped_tensors;
    int64_t n_parameters;  /* of the text decoder */
    int64_t text_bytes;    /* of its tensors */
    int64_t expert_bytes;  /* of them, routed experts */
    int64_t skipped_bytes; /* vision and draft-head tensors */
    int64_t token_bytes;   /* weights read per decoded token */
    bool has_tokenizer;
} calla_checkpoint_info;

typedef struct calla_tensor_info {
    const char *name;
    const char *dtype; /* "BF16", "F32", "U32" */
    int32_t n_dims;
    const int64_t *shape; /* [n_dims] */
    int64_t n_bytes;
    const char *file; /* name within the directory */
    bool skipped;
} calla_tensor_info;
typedef void (*calla_tensor_fn)(void *user, const calla_tensor_info *tensor);

/* Opens and validates a checkpoint as calla_engine_open does, without loading it; `tensor` (or
 * NULL) is called per tensor in name order. */
CALLA_API calla_status calla_checkpoint_inspect(const char *dir, calla_checkpoint_info *info,
                                                calla_tensor_fn tensor, void *user,
                                                calla_error *err);

/* What calla_engine_open would hold, computed from the checkpoint's shape alone. */
CALLA_API calla_status calla_engine_plan(const char *dir, const calla_engine_options *options,
                                         calla_memory_plan *plan, calla_error *err);

/* ---- the machine ---- */

enum { CALLA_MAX_CPU_FEATURES = 16 };

typedef struct calla_machine_info {
    char cpu[128];                           /* the processor's name */
    int32_t n_processors;                    /* this process may run on */
    int32_t n_nodes;                         /* memory nodes they belong to; */
    int32_t n_node_processors, n_node_cores; /* of these, in the node that an engine uses */
    const char *cpu_features[CALLA_MAX_CPU_FEATURES]; /* [n_cpu_features] "avx2" ..., static
                             storage: what kernels may use, the operating system permitting */
    int32_t n_cpu_features;
    int64_t ram_bytes;           /* of the machine, or the control group's limit; 0 = not known */
    bool ram_is_limited;         /* it is a control group's */
    int64_t ram_available_bytes; /* of it, usable now without swapping, page cache included */
    int64_t lockable_bytes;      /* that this process may lock in memory; INT64_MAX = any */
} calla_machine_info;

CALLA_API void calla_machine_get_info(calla_machine_info *info);

/* ---- writing checkpoints ---- */

typedef struct calla_write_options {
    bool overwrite; /* replace a checkpoint in the destination directory: it stays whole until the
                       new one is complete, so the disk must hold both. Other files there stay.
                       Without it the directory must be empty or absent */
    void (*progress)(void *user, int64_t done_bytes, int64_t total_bytes);
    void *user;
    const calla_flag *cancel;
    int64_t max_shard_bytes; /* [5 GiB]; at most 256 files */
} calla_write_options;

/* Quantizes a Hugging Face bf16 checkpoint to MLX affine 4-bit, group 64, routers 8-bit (MODEL.md
 * 2.2), the same bits as MLX on Metal, tensor by tensor. Nothing half-written is left under its
 * final name. */
CALLA_API calla_status calla_quantize(const char *src, const char *dst,
                                      const calla_write_options *options, calla_error *err);

typedef struct calla_synth_options {
    const char *shape;   /* "35b" or "tiny" */
    calla_layout layout; /* [MLX4: 19.5 GB for 35b; BF16: 69 GB] */
    int32_t n_layers;    /* [the shape's, 40 or 8] another depth with the same pattern of layers */
    uint64_t seed;
} calla_synth_options;

/* Writes a random checkpoint of a shape, valid in every respect: weights whose activations and
 * logits have sensible sizes, and a made-up byte-level BPE tokenizer of the shape's full
 * vocabulary. The bytes are a function of the options alone. Refuses before writing when the disk
 * is short. */
CALLA_API calla_status calla_synth(const char *dst, const calla_synth_options *synth,
                                   const calla_write_options *options, calla_error *err);

#ifdef __cplusplus
}
#endif
#endif
