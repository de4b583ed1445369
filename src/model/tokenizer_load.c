/* Opening a tokenizer: tokenizer.json, and what tokenizer_config.json, generation_config.json and
 * config.json add to it (MODEL.md 5.1, 5.2, 1.4). Whatever the steps of encoding do not implement
 * is refused with the value seen. */
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_CONFIG_BYTES = 64 << 20, MAX_INDEX_DIGITS = 10 };

/* ---- values as they stand in the file ---- */

/* A value's JSON, shortened for a message; "nothing" for an absent one. */
static const char *show(const json_t *value, char *buffer)
{
    if (!value) return strcpy(buffer, "nothing");
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return strcpy(buffer, "a value");
    utf8_show(text, strlen(text), buffer);
    free(text);
    return buffer;
}

static calla_status refuse(const char *path, const char *field, const json_t *value,
                           const char *expected, calla_error *err)
{
    char shown[UTF8_SHOWN_BYTES];
    return error_set(err, CALLA_ERR_INPUT, "%s: %s is %s, expected %s", path, field,
                     show(value, shown), expected);
}

static bool is_null(const json_t *value)
{
    return !value || json_is_null(value);
}

/* ---- tokenizer.json but for its tables ---- */

/* Parses JSON; positions in messages are those of the text before `cuts` [2] (or NULL). */
static calla_status parse_json(const char *text, size_t n_bytes, const char *path,
                               const text_cut *cuts, json_t **root, calla_error *err)
{
    json_error_t problem;
    *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &problem);
    if (*root) return CALLA_OK;
    size_t at = problem.position > 0 ? (size_t)problem.position : 0;
    for (int i = 0; cuts && i < 2; i++)
        if (at > cuts[i].at) at += cuts[i].n_bytes;
    return error_set(err, CALLA_ERR_INPUT, "%s: not JSON at byte %zu: %s", path, at, problem.text);
}

static calla_status check_model(const char *path, const json_t *root, calla_tokenizer *t,
                                calla_error *err)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *type = json_object_get(model, "type");
    if (!json_is_text(type, "BPE")) return refuse(path, "model.type", type, "\"BPE\"", err);
    static const struct {
        const char *name, *field;
    } unused[] = {
        {"dropout", "model.dropout"},
        {"unk_token", "model.unk_token"},
        {"continuing_subword_prefix", "model.continuing_subword_prefix"},
        {"end_of_word_suffix", "model.end_of_word_suffix"},
        {"byte_fallback", "model.byte_fallback"},
    };
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        const json_t *value = json_object_get(model, unused[i].name);
        if (!is_null(value) && !json_is_false(value) && !json_is_text(value, ""))
            return refuse(path, unused[i].field, value, "null", err);
    }
    const json_t *ignore_merges = json_object_get(model, "ignore_merges");
    if (!is_null(ignore_merges) && !json_is_boolean(ignore_merges))
        return refuse(path, "model.ignore_merges", ignore_merges, "true or false", err);
    t->whole_pieces = json_is_true(ignore_merges);
    return CALLA_OK;
}

static calla_status check_byte_level(const char *path, const char *field, const json_t *value,
                                     calla_error *err)
{
    if (!json_is_text(json_object_get(value, "type"), "ByteLevel"))
        return refuse(path, field, value, "a ByteLevel", err);
    return CALLA_OK;
}

/* Sequence[Split(Regex, Isolated), ByteLevel] */
static calla_status read_pre_tokenizer(const char *path, const json_t *root, calla_tokenizer *t,
                                       calla_error *err)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *steps = json_object_get(pre, "pretokenizers");
    if (!json_is_text(json_object_get(pre, "type"), "Sequence") || json_array_size(steps) != 2)
        return refuse(path, "pre_tokenizer", pre, "a Sequence of a Split and a ByteLevel", err);
    const json_t *cut = json_array_get(steps, 0), *level = json_array_get(steps, 1);
    const json_t *regex = json_object_get(json_object_get(cut, "pattern"), "Regex");
    if (!json_is_text(json_object_get(cut, "type"), "Split") || !json_is_string(regex) ||
        !json_is_text(json_object_get(cut, "behavior"), "Isolated") ||
        json_is_true(json_object_get(cut, "invert")))
        return refuse(path, "pre_tokenizer.pretokenizers[0]", cut,
                      "a Split by a Regex, Isolated, not inverted", err);
    if (!json_is_text(json_object_get(level, "type"), "ByteLevel") ||
        !json_is_false(json_object_get(level, "add_prefix_space")) ||
        !json_is_false(json_object_get(level, "use_regex")))
        return refuse(path, "pre_tokenizer.pretokenizers[1]", level,
                      "a ByteLevel without add_prefix_space and use_regex", err);
    calla_status status =
        splitter_init(&t->splitter, json_string_value(regex), json_string_length(regex), err);
    if (status == CALLA_ERR_INPUT) error_prefix(err, "%s", path);
    return status;
}

static calla_status check_root(const char *path, const json_t *root, calla_tokenizer *t,
                               calla_error *err)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    t->normalize = json_is_text(json_object_get(normalizer, "type"), "NFC");
    if (!is_null(normalizer) && !t->normalize)
        return refuse(path, "normalizer", normalizer, "null or an NFC", err);
    const json_t *post = json_object_get(root, "post_processor");
    if (!is_null(post)) CALLA_TRY(check_byte_level(path, "post_processor", post, err));
    CALLA_TRY(check_byte_level(path, "decoder", json_object_get(root, "decoder"), err));
    CALLA_TRY(check_model(path, root, t, err));
    return read_pre_tokenizer(path, root, t, err);
}

/* ---- added tokens ---- */

/* One added token, as read. */
typedef struct added_entry {
    int32_t id;
    const char *text; /* [n_bytes], owned by the JSON */
    size_t n_bytes;
    bool special;
} added_entry;

typedef struct added_list {
    added_entry *entries;
    size_t n, capacity;
} added_list;

/* Reads one; `where` names it in messages. */
static calla_status read_added(const char *path, const char *where, const json_t *value, int64_t id,
                               added_list *list, calla_error *err)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    const json_t *content = json_object_get(value, "content");
    size_t n = json_string_length(content);
    if (id < 0 || id >= TOKENIZER_MAX_TOKENS)
        return error_set(err, CALLA_ERR_INPUT, "%s: %s has the id %lld, expected 0 to %d", path,
                         where, (long long)id, TOKENIZER_MAX_TOKENS - 1);
    if (!json_is_string(content) || n == 0 || n > TOKENIZER_MAX_ADDED_BYTES)
        return refuse(path, where, value, "a content of 1 to 256 bytes", err);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const json_t *flag = json_object_get(value, flags[i]);
        if (is_null(flag) || json_is_false(flag)) continue;
        char field[64];
        snprintf(field, sizeof field, "%s.%s", where, flags[i]);
        return refuse(path, field, flag, "false", err);
    }
    const json_t *special = json_object_get(value, "special");
    if (!is_null(special) && !json_is_boolean(special))
        return refuse(path, where, value, "special to be true or false", err);
    if (list->n >= TOKENIZER_MAX_ADDED)
        return error_set(err, CALLA_ERR_INPUT, "%s: more than %d added tokens", path,
                         TOKENIZER_MAX_ADDED);
    CALLA_TRY(mem_grow((void **)&list->entries, &list->capacity, list->n + 1,
                       sizeof list->entries[0], "added tokens", err));
    list->entries[list->n++] =
        (added_entry){(int32_t)id, json_string_value(content), n, json_is_true(special)};
    return CALLA_OK;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const added_entry *)a)->id, y = ((const added_entry *)b)->id;
    return (x > y) - (x < y);
}

/* Adds one token to the tables, or checks it against what they have under its id or text. */
static calla_status enter_added(const char *path, const added_entry *e, calla_tokenizer *t,
                                calla_error *err)
{
    vocabulary *v = &t->vocabulary;
    if (e->id > v->n_tokens)
        return error_set(err, CALLA_ERR_INPUT, "%s: no token has the id %d, below %d of '%s'", path,
                         v->n_tokens, e->id, e->text);
    if (e->id < v->n_tokens) {
        const token_span *old = &v->tokens[e->id];
        char shown[UTF8_SHOWN_BYTES];
        if (old->n_bytes != e->n_bytes || memcmp(v->bytes + old->offset, e->text, e->n_bytes) != 0)
            return error_set(err, CALLA_ERR_INPUT, "%s: the id %d is given to '%s' and to '%s'",
                             path, e->id, utf8_show(v->bytes + old->offset, old->n_bytes, shown),
                             e->text);
    } else {
        CALLA_TRY(vocabulary_append(v, e->text, e->n_bytes, err));
    }
    int32_t before;
    CALLA_TRY(added_insert(&t->added, e->text, e->n_bytes, e->id, &before, err));
    if (before >= 0 && before != e->id)
        return error_set(err, CALLA_ERR_INPUT, "%s: '%s' has the ids %d and %d", path, e->text,
                         before, e->id);
    return CALLA_OK;
}

/* Enters a list in the order of ids, which may not leave gaps. */
static calla_status enter_list(const char *path, added_list *list, calla_tokenizer *t,
                               calla_error *err)
{
    if (list->n) qsort(list->entries, list->n, sizeof list->entries[0], by_id);
    for (size_t i = 0; i < list->n; i++) CALLA_TRY(enter_added(path, &list->entries[i], t, err));
    size_t n_before = t->n_flags, n = (size_t)t->vocabulary.n_tokens;
    CALLA_TRY(mem_grow((void **)&t->flags, &t->flags_capacity, n, 1, "token flags", err));
    memset(t->flags + n_before, 0, n - n_before);
    t->n_flags = n;
    for (size_t i = 0; i < list->n; i++) {
        const added_entry *e = &list->entries[i];
        t->flags[e->id] = TOKEN_ADDED | (e->special ? TOKEN_SPECIAL : 0);
    }
    return CALLA_OK;
}

static calla_status read_added_tokens(const char *path, const json_t *root, calla_tokenizer *t,
                                      calla_error *err)
{
    const json_t *tokens = json_object_get(root, "added_tokens"), *token;
    added_list list = {0};
    calla_status status = CALLA_OK;
    size_t i;
    if (!is_null(tokens) && !json_is_array(tokens))
        return refuse(path, "added_tokens", tokens, "an array", err);
    json_array_foreach(tokens, i, token)
    {
        char where[40];
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        const json_t *id = json_object_get(token, "id");
        if (!json_is_integer(id))
            CALLA_TRY_GOTO(refuse(path, where, token, "an object with an id", err), done);
        CALLA_TRY_GOTO(read_added(path, where, token, json_integer_value(id), &list, err), done);
    }
    status = enter_list(path, &list, t, err);
done:
    free(list.entries);
    return status;
}

/* "248044" of added_tokens_decoder; -1 if it is not a number. */
static int64_t parse_index(const char *text)
{
    int64_t value = 0;
    size_t n = strlen(text);
    if (n == 0 || n > MAX_INDEX_DIGITS) return -1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value;
}

/* tokenizer_config.json: all added tokens once more, and those tokenizer.json lacks. */
static calla_status read_added_decoder(const char *path, json_t *root, calla_tokenizer *t,
                                       calla_error *err)
{
    json_t *tokens = json_object_get(root, "added_tokens_decoder"), *token;
    added_list list = {0};
    calla_status status = CALLA_OK;
    const char *key;
    if (is_null(tokens)) return CALLA_OK;
    if (!json_is_object(tokens))
        return refuse(path, "added_tokens_decoder", tokens, "an object", err);
    json_object_foreach(tokens, key, token)
    {
        char where[96], shown[UTF8_SHOWN_BYTES];
        snprintf(where, sizeof where, "added_tokens_decoder.%s",
                 utf8_show(key, strlen(key), shown));
        CALLA_TRY_GOTO(read_added(path, where, token, parse_index(key), &list, err), done);
    }
    status = enter_list(path, &list, t, err);
done:
    free(list.entries);
    return status;
}

/* ---- stop ids ---- */

static calla_status add_stop(const char *path, const char *field, const json_t *value,
                             calla_tokenizer *t, calla_error *err)
{
    int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= t->vocabulary.n_tokens) {
        char expected[64];
        snprintf(expected, sizeof expected, "an id from 0 to %d", t->vocabulary.n_tokens - 1);
        return refuse(path, field, value, expected, err);
    }
    t->flags[id] |= TOKEN_STOP;
    return CALLA_OK;
}

/* An id or a list of ids. */
static calla_status add_stops(const char *path, const char *field, const json_t *value,
                              calla_tokenizer *t, calla_error *err)
{
    if (!json_is_array(value)) return add_stop(path, field, value, t, err);
    const json_t *id;
    size_t i;
    json_array_foreach(value, i, id) CALLA_TRY(add_stop(path, field, id, t, err));
    return CALLA_OK;
}

static calla_status read_stops(const char *path, json_t *root, calla_tokenizer *t, calla_error *err)
{
    const json_t *own = json_object_get(root, "eos_token_id");
    if (!is_null(own)) return add_stops(path, "eos_token_id", own, t, err);
    const json_t *text = json_object_get(json_object_get(root, "text_config"), "eos_token_id");
    if (!is_null(text)) return add_stops(path, "text_config.eos_token_id", text, t, err);
    return CALLA_OK;
}

static void add_usual_stops(calla_tokenizer *t)
{
    static const char *const texts[] = {"<|im_end|>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int32_t id = calla_tokenizer_find(t, texts[i]);
        if (id >= 0) t->flags[id] |= TOKEN_STOP;
    }
}

/* ---- opening ---- */

static calla_status parse_into(const char *text, size_t n_bytes, const char *path,
                               calla_tokenizer *t, calla_error *err)
{
    strbuf rest = {0};
    text_cut cuts[2];
    json_t *root = NULL;
    calla_status status;
    size_t valid = utf8_valid_bytes(text, n_bytes);
    if (valid < n_bytes)
        return error_set(err, CALLA_ERR_INPUT, "%s: not UTF-8 at byte %zu", path, valid);
    CALLA_TRY_GOTO(vocabulary_parse(text, n_bytes, path, &t->vocabulary, &rest, cuts, err), done);
    if (rest.failed)
        CALLA_TRY_GOTO(error_set(err, CALLA_ERR_MEMORY, "%s: no memory for its text", path), done);
    CALLA_TRY_GOTO(parse_json(rest.data, rest.n, path, cuts, &root, err), done);
    CALLA_TRY_GOTO(check_root(path, root, t, err), done);
    t->n_bpe = t->vocabulary.n_tokens;
    CALLA_TRY_GOTO(read_added_tokens(path, root, t, err), done);
    add_usual_stops(t);
done:
    json_decref(root);
    strbuf_free(&rest);
    return status;
}

calla_status tokenizer_parse(const char *text, size_t n_bytes, const char *path,
                             calla_tokenizer **tokenizer, calla_error *err)
{
    calla_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_set(err, CALLA_ERR_MEMORY, "no memory for a tokenizer");
    calla_status status = parse_into(text, n_bytes, path, t, err);
    if (status != CALLA_OK) {
        calla_tokenizer_close(t);
        return status;
    }
    *tokenizer = t;
    return CALLA_OK;
}

typedef calla_status (*config_fn)(const char *path, json_t *root, calla_tokenizer *t,
                                  calla_error *err);

/* Hands the JSON object of dir/name, if there is such a file, to `read`. */
static calla_status read_config(const char *dir, const char *name, config_fn read,
                                calla_tokenizer *t, calla_error *err)
{
    char *path = path_join(dir, name), *text = NULL;
    size_t n;
    json_t *root = NULL;
    calla_status status = CALLA_OK;
    if (!path) return error_set(err, CALLA_ERR_MEMORY, "no memory for a path");
    if (!file_exists(path)) goto done;
    CALLA_TRY_GOTO(file_read(path, MAX_CONFIG_BYTES, &text, &n, err), done);
    CALLA_TRY_GOTO(parse_json(text, n, path, NULL, &root, err), done);
    if (!json_is_object(root))
        status = refuse(path, "the file", root, "an object", err);
    else
        status = read(path, root, t, err);
done:
    json_decref(root);
    free(text);
    free(path);
    return status;
}

calla_status calla_tokenizer_open(const char *dir, calla_tokenizer **tokenizer, calla_error *err)
{
    CALLA_TRY(dir_check(dir, err));
    char *path = path_join(dir, "tokenizer.json"), *text = NULL;
    size_t n;
    calla_tokenizer *t = NULL;
    calla_status status;
    if (!path) return error_set(err, CALLA_ERR_MEMORY, "no memory for a path");
    CALLA_TRY_GOTO(file_read(path, MAX_TOKENIZER_BYTES, &text, &n, err), done);
    CALLA_TRY_GOTO(tokenizer_parse(text, n, path, &t, err), done);
    CALLA_TRY_GOTO(read_config(dir, "tokenizer_config.json", read_added_decoder, t, err), done);
    add_usual_stops(t);
    CALLA_TRY_GOTO(read_config(dir, "generation_config.json", read_stops, t, err), done);
    CALLA_TRY_GOTO(read_config(dir, "config.json", read_stops, t, err), done);
    *tokenizer = t;
    t = NULL;
done:
    calla_tokenizer_close(t);
    free(text);
    free(path);
    return status;
}

void calla_tokenizer_close(calla_tokenizer *t)
{
    if (!t) return;
    vocabulary_deinit(&t->vocabulary);
    added_deinit(&t->added);
    splitter_deinit(&t->splitter);
    free(t->flags);
    free(t);
}
