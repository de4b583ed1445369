#include "model/quantize_config.h"

#include "base/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON_BYTES = 1 << 20 };

static calla_status no_memory(calla_error *err)
{
    return error_set(err, CALLA_ERR_MEMORY, "no memory for config.json");
}

/* The object in dir/name; NULL, without an error, if the file is absent. */
static calla_status load_object(const char *dir, const char *name, json_t **object,
                                calla_error *err)
{
    *object = NULL;
    char *path = path_join(dir, name), *text = NULL;
    if (!path) return no_memory(err);
    calla_status status = CALLA_OK;
    size_t n;
    json_error_t where;
    if (!file_exists(path)) goto done;
    CALLA_TRY_GOTO(file_read(path, MAX_JSON_BYTES, &text, &n, err), done);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        status = error_set(err, CALLA_ERR_INPUT, "%s: line %d, column %d: %s", path, where.line,
                           where.column, where.text);
    else if (!json_is_object(root))
        status = error_set(err, CALLA_ERR_INPUT, "%s is not a JSON object", path);
    if (status == CALLA_OK)
        *object = root;
    else
        json_decref(root);
done:
    free(text);
    free(path);
    return status;
}

/* {"group_size": 64, "bits": bits} */
static json_t *group_object(int bits)
{
    return json_pack("{s:i, s:i}", "group_size", QUANT_GROUP, "bits", bits);
}

static calla_status add_quantization(json_t *root, const model_config *config, calla_error *err)
{
    json_t *q = group_object(4);
    int failed = json_object_set_new(q, "mode", json_string("affine"));
    for (int32_t i = 0; i < config->n_layers; i++) {
        char path[96];
        snprintf(path, sizeof path, "language_model.model.layers.%d.mlp.gate", i);
        failed |= json_object_set_new(q, path, group_object(8));
        snprintf(path, sizeof path, "language_model.model.layers.%d.mlp.shared_expert_gate", i);
        failed |= json_object_set_new(q, path, group_object(8));
    }
    /* A key that was there keeps its place, so take it out first. */
    json_object_del(root, "quantization");
    json_object_del(root, "quantization_config");
    failed |= json_object_set(root, "quantization", q);
    failed |= json_object_set_new(root, "quantization_config", json_deep_copy(q));
    json_decref(q);
    return failed ? no_memory(err) : CALLA_OK;
}

/* Dumped with the fewest digits that give every number back: 1e-6, not 9.9999999999999995e-7. */
static calla_status dump(json_t *root, char **text, size_t *n_bytes, calla_error *err)
{
    bool same = false;
    for (int digits = 15; digits <= 17 && !same; digits++) {
        char *candidate = json_dumps(root, JSON_INDENT(4) | JSON_REAL_PRECISION(digits));
        if (!candidate) return no_memory(err);
        json_t *again = json_loads(candidate, 0, NULL);
        same = json_equal(root, again) || digits == 17;
        json_decref(again);
        if (same)
            *text = candidate;
        else
            free(candidate);
    }
    *n_bytes = strlen(*text);
    return CALLA_OK;
}

calla_status quantized_config_text(const char *src, const model_config *config, char **text,
                                   size_t *n_bytes, calla_error *err)
{
    json_t *root = NULL, *generation = NULL;
    calla_status status;
    CALLA_TRY_GOTO(load_object(src, "config.json", &root, err), done);
    if (!root) {
        status = error_set(err, CALLA_ERR_IO, "%s/config.json is gone", src);
        goto done;
    }
    CALLA_TRY_GOTO(load_object(src, "generation_config.json", &generation, err), done);
    json_object_del(root, "_name_or_path");
    json_object_del(root, "vision_config");
    json_t *eos = json_object_get(generation, "eos_token_id");
    if (eos && !json_is_null(eos) && json_object_set(root, "eos_token_id", eos) != 0) {
        status = no_memory(err);
        goto done;
    }
    CALLA_TRY_GOTO(add_quantization(root, config, err), done);
    status = dump(root, text, n_bytes, err);
done:
    json_decref(root);
    json_decref(generation);
    return status;
}

calla_status quantization_add_text(const char *config_text, const model_config *config, char **out,
                                   size_t *n_bytes, calla_error *err)
{
    json_t *root = json_loads(config_text, JSON_REJECT_DUPLICATES, NULL);
    if (!root) return no_memory(err);
    calla_status status = add_quantization(root, config, err);
    if (status == CALLA_OK) status = dump(root, out, n_bytes, err);
    json_decref(root);
    return status;
}
