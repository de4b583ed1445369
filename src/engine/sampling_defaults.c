/* calla_sampling_defaults: generation_config.json (MODEL.md 1.4). */
#include "base/file.h"
#include "base/json.h"
#include "engine/sampler.h"

#include <stdlib.h>

/* A number if the key is present; *value is untouched if it is absent or null. */
static calla_status read_number(const json_t *object, const char *key, const char *path,
                                float *value, calla_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return CALLA_OK;
    if (!json_is_number(v))
        return error_set(err, CALLA_ERR_INPUT, "%s: %s is not a number", path, key);
    *value = (float)json_number_value(v);
    return CALLA_OK;
}

static calla_status read_whole(const json_t *object, const char *key, const char *path,
                               int32_t *value, calla_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return CALLA_OK;
    if (!json_is_integer(v))
        return error_set(err, CALLA_ERR_INPUT, "%s: %s is not a whole number", path, key);
    json_int_t n = json_integer_value(v);
    if (n < 0 || n > INT32_MAX)
        return error_set(err, CALLA_ERR_INPUT, "%s: %s is %lld, outside 0 ... %d", path, key,
                         (long long)n, INT32_MAX);
    *value = (int32_t)n;
    return CALLA_OK;
}

static calla_status read_all(const json_t *object, const char *path, calla_sampling *s,
                             calla_error *err)
{
    CALLA_TRY(read_number(object, "temperature", path, &s->temperature, err));
    CALLA_TRY(read_whole(object, "top_k", path, &s->top_k, err));
    CALLA_TRY(read_number(object, "top_p", path, &s->top_p, err));
    CALLA_TRY(read_number(object, "min_p", path, &s->min_p, err));
    CALLA_TRY(read_number(object, "presence_penalty", path, &s->presence_penalty, err));
    CALLA_TRY(read_number(object, "frequency_penalty", path, &s->frequency_penalty, err));
    CALLA_TRY(read_number(object, "repetition_penalty", path, &s->repetition_penalty, err));
    const json_t *sample = json_object_get(object, "do_sample");
    if (sample && !json_is_boolean(sample) && !json_is_null(sample))
        return error_set(err, CALLA_ERR_INPUT, "%s: do_sample is not true or false", path);
    if (json_is_false(sample)) s->temperature = 0;
    calla_status status = sampling_check(s, INT32_MAX, err);
    return status == CALLA_OK ? status : (error_prefix(err, "%s", path), status);
}

calla_status calla_sampling_defaults(const char *dir, calla_sampling *sampling, calla_error *err)
{
    CALLA_TRY(dir_check(dir, err));
    calla_status status = CALLA_OK;
    calla_sampling s = {.temperature = 1, .top_k = 20, .top_p = 0.95f};
    char *text = NULL;
    size_t n_bytes;
    json_t *root = NULL;
    char *path = path_join(dir, "generation_config.json");
    if (!path) return error_set(err, CALLA_ERR_MEMORY, "%s: no memory for a path", dir);
    if (file_exists(path)) {
        CALLA_TRY_GOTO(file_read(path, 1 << 20, &text, &n_bytes, err), done);
        CALLA_TRY_GOTO(json_parse_text(text, n_bytes, path, &root, err), done);
        if (!json_is_mapping(root)) {
            status = error_set(err, CALLA_ERR_INPUT, "%s: %s where an object was expected", path,
                               json_kind_name(root));
            goto done;
        }
        CALLA_TRY_GOTO(read_all(root, path, &s, err), done);
    }
    *sampling = s;
done:
    json_decref(root);
    free(text);
    free(path);
    return status;
}
