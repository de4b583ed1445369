#include "server/replay.h"

#include "base/memory.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 256 };

/* One of two kinds: with tokens, or (reasoning) without. */
typedef struct entry {
    char *key; /* [n_key]: the text of the prompt and the answer; or context, content and calls */
    size_t n_key, n_prompt; /* n_prompt: of it, the prompt */
    calla_range *literal;   /* [n_literal] of the prompt */
    size_t n_literal;
    int32_t *tokens; /* [n_tokens], NULL in the other kind */
    size_t n_tokens;
    char *reasoning; /* [n_reasoning], NULL in the other kind */
    size_t n_reasoning;
    uint64_t last_used; /* 0 = free */
} entry;

struct replay {
    pthread_mutex_t lock;
    int64_t budget, used;
    uint64_t now;
    entry entries[MAX_ENTRIES];
};

calla_status replay_create(int64_t n_bytes, replay **out, calla_error *err)
{
    replay *r = calloc(1, sizeof *r);
    if (!r) return error_set(err, CALLA_ERR_MEMORY, "no memory to remember answers");
    r->budget = n_bytes;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return CALLA_OK;
}

static int64_t entry_bytes(const entry *e)
{
    return (int64_t)(e->n_key + e->n_literal * sizeof *e->literal +
                     e->n_tokens * sizeof *e->tokens + e->n_reasoning);
}

static void entry_clear(entry *e)
{
    free(e->key);
    free(e->literal);
    free(e->tokens);
    free(e->reasoning);
    *e = (entry){0};
}

void replay_free(replay *r)
{
    if (!r) return;
    for (int i = 0; i < MAX_ENTRIES; i++) entry_clear(&r->entries[i]);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ---- keeping ---- */

/* A copy of n elements; *failed if there is no memory for it. n 0 gives NULL. */
static void *copy(const void *data, size_t n, size_t element_bytes, bool *failed)
{
    size_t n_bytes;
    if (n == 0) return NULL;
    void *p = size_mul(n, element_bytes, &n_bytes) ? malloc(n_bytes) : NULL;
    if (!p)
        *failed = true;
    else
        memcpy(p, data, n_bytes);
    return p;
}

static void drop(replay *r, entry *e)
{
    r->used -= entry_bytes(e);
    entry_clear(e);
}

static entry *oldest(replay *r)
{
    entry *found = NULL;
    for (int i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &r->entries[i];
        if (e->last_used > 0 && (!found || e->last_used < found->last_used)) found = e;
    }
    return found;
}

static bool same_key(const entry *a, const entry *b)
{
    return a->n_key == b->n_key && (a->tokens != NULL) == (b->tokens != NULL) &&
           memcmp(a->key, b->key, a->n_key) == 0;
}

/* Takes the entry over, in the place of one with the same key or of the oldest. */
static void keep(replay *r, entry *e)
{
    entry *place = NULL;
    int64_t n_bytes = entry_bytes(e);
    if (n_bytes > r->budget) {
        entry_clear(e);
        return;
    }
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MAX_ENTRIES; i++)
        if (r->entries[i].last_used > 0 && same_key(&r->entries[i], e)) drop(r, &r->entries[i]);
    while (r->used + n_bytes > r->budget) drop(r, oldest(r));
    for (int i = 0; i < MAX_ENTRIES && !place; i++)
        if (r->entries[i].last_used == 0) place = &r->entries[i];
    if (!place) {
        place = oldest(r);
        drop(r, place);
    }
    *place = *e;
    place->last_used = ++r->now;
    r->used += n_bytes;
    pthread_mutex_unlock(&r->lock);
}

/* ---- tokens ---- */

void replay_note_tokens(replay *r, const calla_prompt *prompt, const strbuf *raw,
                        const int32_t *tokens, int64_t n_tokens)
{
    strbuf key = {0};
    bool failed = false;
    entry e = {.n_prompt = prompt->text.n_bytes,
               .n_literal = prompt->n_literal,
               .n_tokens = (size_t)n_tokens};
    if (raw->n == 0) return;
    strbuf_append(&key, prompt->text.data, prompt->text.n_bytes);
    strbuf_append(&key, raw->data, raw->n);
    e.literal = copy(prompt->literal, prompt->n_literal, sizeof *e.literal, &failed);
    e.tokens = copy(tokens, e.n_tokens, sizeof *e.tokens, &failed);
    if (failed || strbuf_take(&key, &e.key, &e.n_key, NULL) != CALLA_OK) {
        strbuf_free(&key);
        entry_clear(&e);
        return;
    }
    keep(r, &e);
}

/* Whether the prompt begins with the entry's prompt, parts from outside in the same places, then
 * the answer's text, and there the template goes on: text from outside that only looks like an
 * earlier prompt must stay text. */
static bool begins_with(const calla_prompt *p, const entry *e)
{
    if (!e->tokens || e->n_key > p->text.n_bytes || memcmp(p->text.data, e->key, e->n_key) != 0)
        return false;
    for (size_t i = 0; i < e->n_literal; i++)
        if (i >= p->n_literal || p->literal[i].begin != e->literal[i].begin ||
            p->literal[i].end != e->literal[i].end)
            return false;
    for (size_t i = e->n_literal; i < p->n_literal && p->literal[i].begin <= e->n_key; i++) {
        if (p->literal[i].begin < e->n_prompt || p->literal[i].end > e->n_key) return false;
    }
    static const char end[] = "<|im_end|>";
    return p->text.n_bytes - e->n_key >= sizeof end - 1 &&
           memcmp(p->text.data + e->n_key, end, sizeof end - 1) == 0;
}

/* The tokens of the longest entry the prompt begins with; *n_text bytes of it. */
static calla_status take_known(replay *r, const calla_prompt *prompt, calla_tokens *tokens,
                               size_t *n_text, calla_error *err)
{
    entry *best = NULL;
    bool failed = false;
    *tokens = (calla_tokens){0};
    *n_text = 0;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MAX_ENTRIES; i++) {
        entry *e = &r->entries[i];
        if (e->last_used == 0 || (best && e->n_key <= best->n_key) || !begins_with(prompt, e))
            continue;
        best = e;
    }
    if (best) {
        best->last_used = ++r->now;
        tokens->ids = copy(best->tokens, best->n_tokens, sizeof *best->tokens, &failed);
        tokens->n = (int64_t)best->n_tokens;
        *n_text = best->n_key;
    }
    pthread_mutex_unlock(&r->lock);
    return failed ? error_set(err, CALLA_ERR_MEMORY, "no memory for a prompt") : CALLA_OK;
}

/* Appends `more`, and frees it. */
static calla_status join(calla_tokens *tokens, calla_tokens *more, calla_error *err)
{
    size_t n = (size_t)(tokens->n + more->n);
    int32_t *ids = realloc(tokens->ids, (n ? n : 1) * sizeof *ids);
    if (ids) {
        if (more->n > 0) memcpy(ids + tokens->n, more->ids, (size_t)more->n * sizeof *ids);
        *tokens = (calla_tokens){ids, (int64_t)n};
    }
    calla_tokens_free(more);
    return ids ? CALLA_OK : error_set(err, CALLA_ERR_MEMORY, "no memory for a prompt");
}

calla_status replay_encode(replay *r, const calla_tokenizer *tokenizer, const calla_prompt *prompt,
                           calla_tokens *out, calla_error *err)
{
    calla_tokens tokens, rest;
    size_t n_text, first = 0;
    calla_status status = CALLA_OK;
    CALLA_TRY(take_known(r, prompt, &tokens, &n_text, err));
    while (first < prompt->n_literal && prompt->literal[first].begin < n_text) first++;
    size_t n_literal = prompt->n_literal - first;
    calla_range *literal = calloc(n_literal ? n_literal : 1, sizeof *literal);
    if (!literal) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for a prompt");
        goto fail;
    }
    for (size_t i = 0; i < n_literal; i++) {
        literal[i].begin = prompt->literal[first + i].begin - n_text;
        literal[i].end = prompt->literal[first + i].end - n_text;
    }
    CALLA_TRY_GOTO(calla_tokenizer_encode(tokenizer, prompt->text.data + n_text,
                                          prompt->text.n_bytes - n_text, literal, n_literal, &rest,
                                          err),
                   fail);
    CALLA_TRY_GOTO(join(&tokens, &rest, err), fail);
    free(literal);
    *out = tokens;
    return CALLA_OK;
fail:
    free(literal);
    calla_tokens_free(&tokens);
    return status;
}

/* ---- reasoning ---- */

static void put_field(strbuf *key, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (json_is_string(value)) /* null and "" are the same */
        strbuf_append(key, json_string_value(value), json_string_length(value));
    else if (value && !json_is_null(value))
        json_write_value(key, value);
    strbuf_putc(key, '\0');
}

char *replay_context(const json_t *messages, size_t n)
{
    strbuf key = {0};
    char *text;
    size_t n_text;
    const json_t *before = n > 0 ? json_array_get(messages, n - 1) : NULL;
    if (before) {
        json_t *parts = json_array();
        static const char *const names[] = {"role", "content", "tool_call_id"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            json_t *value = json_object_get(before, names[i]);
            json_array_append(parts, value ? value : json_null());
        }
        json_write_value(&key, parts);
        json_decref(parts);
    }
    if (strbuf_take(&key, &text, &n_text, NULL) == CALLA_OK) return text;
    strbuf_free(&key);
    return NULL;
}

static void put_calls(strbuf *key, const json_t *calls)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *arguments = json_object_get(function, "arguments");
        json_t *parsed = NULL;
        put_field(key, function, "name");
        /* Clients may write the arguments anew: their value counts. */
        if (json_is_string(arguments) &&
            json_parse_text(json_string_value(arguments), json_string_length(arguments), "",
                            &parsed, NULL) == CALLA_OK) {
            json_write_value(key, parsed);
            strbuf_putc(key, '\0');
            json_decref(parsed);
        } else {
            put_field(key, function, "arguments");
        }
    }
}

void replay_note_reasoning(replay *r, const char *context, const strbuf *content,
                           const json_t *calls, const strbuf *reasoning)
{
    strbuf key = {0};
    bool failed = false;
    entry e = {.n_reasoning = reasoning->n};
    if (reasoning->n == 0) return;
    strbuf_append(&key, context, strlen(context) + 1);
    strbuf_append(&key, content->data ? content->data : "", content->n);
    strbuf_putc(&key, '\0');
    put_calls(&key, calls);
    e.reasoning = copy(reasoning->data, reasoning->n, 1, &failed);
    if (failed || strbuf_take(&key, &e.key, &e.n_key, NULL) != CALLA_OK) {
        strbuf_free(&key);
        entry_clear(&e);
        return;
    }
    keep(r, &e);
}

static json_t *find_reasoning(replay *r, const strbuf *key)
{
    json_t *found = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MAX_ENTRIES && !found; i++) {
        entry *e = &r->entries[i];
        if (!e->reasoning || e->n_key != key->n || memcmp(e->key, key->data, key->n) != 0) continue;
        found = json_stringn(e->reasoning, e->n_reasoning);
        e->last_used = ++r->now;
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

static bool has_reasoning(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(message, names[i]);
        if (value && !json_is_null(value)) return true;
    }
    return false;
}

void replay_restore_reasoning(replay *r, json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_text(json_object_get(message, "role"), "assistant") || has_reasoning(message))
            continue;
        strbuf key = {0};
        char *context = replay_context(messages, i);
        if (context) strbuf_append(&key, context, strlen(context) + 1);
        put_field(&key, message, "content");
        put_calls(&key, json_object_get(message, "tool_calls"));
        json_t *reasoning = context && !key.failed ? find_reasoning(r, &key) : NULL;
        if (reasoning) json_object_set_new(message, "reasoning_content", reasoning);
        strbuf_free(&key);
        free(context);
    }
}
