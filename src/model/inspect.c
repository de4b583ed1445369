#include "model/weights.h"

#include <stdlib.h>

static void report_tensors(const tensor_set *set, calla_tensor_fn fn, void *user)
{
    for (int32_t i = 0; i < set->n_tensors; i++) {
        const tensor *t = &set->tensors[i];
        calla_tensor_info info = {
            .name = t->name,
            .dtype = t->dtype_name,
            .n_dims = t->n_dims,
            .shape = t->shape,
            .n_bytes = (int64_t)t->n_bytes,
            .file = set->files[t->file].name,
            .skipped = !t->used,
        };
        fn(user, &info);
    }
}

static void fill_info(const model_weights *w, bool has_tokenizer, calla_checkpoint_info *info)
{
    const model_config *c = &w->config;
    *info = (calla_checkpoint_info){
        .layout = c->layout,
        .n_layers = c->n_layers,
        .n_attention_layers = c->n_attention_layers,
        .hidden_size = c->hidden_size,
        .n_vocab = c->n_vocab,
        .n_query_heads = c->n_query_heads,
        .n_kv_heads = c->n_kv_heads,
        .n_key_heads = c->n_key_heads,
        .n_value_heads = c->n_value_heads,
        .n_experts = c->n_experts,
        .n_experts_per_token = c->n_experts_per_token,
        .expert_width = c->expert_width,
        .shared_expert_width = c->shared_expert_width,
        .max_positions = c->max_positions,
        .n_files = w->tensors.n_files,
        .n_tensors = w->tensors.n_tensors,
        .n_skipped_tensors = w->n_skipped,
        .n_parameters = w->n_parameters,
        .text_bytes = w->text_bytes,
        .expert_bytes = w->expert_bytes,
        .skipped_bytes = w->skipped_bytes,
        .token_bytes = w->token_bytes,
        .has_tokenizer = has_tokenizer,
    };
}

calla_status calla_checkpoint_inspect(const char *dir, calla_checkpoint_info *info,
                                      calla_tensor_fn report, void *user, calla_error *err)
{
    model_weights w;
    CALLA_TRY(model_weights_open(dir, &w, err));
    calla_status status = CALLA_OK;
    char *tokenizer = path_join(dir, "tokenizer.json");
    if (!tokenizer) {
        status = error_set(err, CALLA_ERR_MEMORY, "%s: no memory for a file name", dir);
    } else {
        fill_info(&w, file_exists(tokenizer), info);
        if (report) report_tensors(&w.tensors, report, user);
    }
    free(tokenizer);
    model_weights_close(&w);
    return status;
}
