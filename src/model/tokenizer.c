/* Text to ids and back (MODEL.md 5.3); how the parts fit together is in tokenizer.h. */
#include "model/tokenizer.h"

#include "base/memory.h"
#include "model/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- text to ids ---- */

/* What one call works with. */
typedef struct encoder {
    const calla_tokenizer *tokenizer;
    strbuf replaced, normalized;
    nfc nfc;
    split_pass split;
    bpe bpe;
    id_list ids;
} encoder;

static calla_status add_id(encoder *e, int32_t id, calla_error *err)
{
    CALLA_TRY(mem_grow((void **)&e->ids.ids, &e->ids.capacity, e->ids.n + 1, sizeof id, "token ids",
                       err));
    e->ids.ids[e->ids.n++] = id;
    return CALLA_OK;
}

static calla_status encode_piece(encoder *e, const char *piece, size_t n_bytes, calla_error *err)
{
    const vocabulary *v = &e->tokenizer->vocabulary;
    if (e->tokenizer->whole_pieces) {
        int32_t id = vocabulary_find(v, piece, n_bytes);
        if (id >= 0) return add_id(e, id, err);
    }
    return bpe_encode(&e->bpe, piece, n_bytes, &e->ids, err);
}

/* Text between added tokens. */
static calla_status encode_span(encoder *e, const char *text, size_t n_bytes, calla_error *err)
{
    if (n_bytes == 0) return CALLA_OK;
    if (utf8_valid_bytes(text, n_bytes) < n_bytes) {
        strbuf_clear(&e->replaced);
        utf8_append_replaced(&e->replaced, text, n_bytes);
        if (e->replaced.failed) return error_set(err, CALLA_ERR_MEMORY, "no memory for a text");
        text = e->replaced.data;
        n_bytes = e->replaced.n;
    }
    if (e->tokenizer->normalize && !nfc_is_certain(text, n_bytes)) {
        strbuf_clear(&e->normalized);
        CALLA_TRY(nfc_append(&e->nfc, text, n_bytes, &e->normalized, err));
        text = e->normalized.data;
        n_bytes = e->normalized.n;
    }
    CALLA_TRY(split_begin(&e->split, text, n_bytes, err));
    for (;;) {
        size_t begin, end;
        CALLA_TRY(split_next(&e->split, &begin, &end, err));
        if (begin == end) return CALLA_OK;
        CALLA_TRY(encode_piece(e, text + begin, end - begin, err));
    }
}

/* The literal ranges that a match may touch, advanced as the text is. */
typedef struct literals {
    const calla_range *ranges; /* [n] */
    size_t n, next;            /* all before `next` end at or before the current position */
} literals;

/* Bytes from `at` on that are in no literal range: a match may be that long. */
static size_t free_bytes(literals *l, size_t at, size_t n_bytes)
{
    while (l->next < l->n && l->ranges[l->next].end <= at) l->next++;
    while (l->next < l->n && l->ranges[l->next].begin == l->ranges[l->next].end) l->next++;
    if (l->next == l->n) return n_bytes - at;
    size_t begin = l->ranges[l->next].begin;
    return begin <= at ? 0 : begin - at;
}

static calla_status encode_text(encoder *e, const char *text, size_t n_bytes, literals *l,
                                calla_error *err)
{
    const added_tree *added = &e->tokenizer->added;
    size_t span = 0;
    for (size_t at = 0; at < n_bytes;) {
        size_t length;
        int32_t id = -1;
        if (added->starts[(unsigned char)text[at]])
            id = added_match(added, text + at, free_bytes(l, at, n_bytes), &length);
        if (id < 0) {
            at++;
            continue;
        }
        CALLA_TRY(encode_span(e, text + span, at - span, err));
        CALLA_TRY(add_id(e, id, err));
        span = at += length;
    }
    return encode_span(e, text + span, n_bytes - span, err);
}

static void check_literals(const calla_range *literal, size_t n, size_t n_bytes)
{
    for (size_t i = 0, at = 0; i < n; at = literal[i++].end) {
        assert(literal[i].begin >= at && literal[i].begin <= literal[i].end);
        assert(literal[i].end <= n_bytes);
    }
    (void)literal, (void)n, (void)n_bytes;
}

calla_status calla_tokenizer_encode(const calla_tokenizer *tokenizer, const char *text,
                                    size_t n_bytes, const calla_range *literal, size_t n_literal,
                                    calla_tokens *tokens, calla_error *err)
{
    if (n_bytes > TOKENIZER_MAX_TEXT_BYTES)
        return error_set(err, CALLA_ERR_INPUT, "a text of %zu bytes, more than %d", n_bytes,
                         TOKENIZER_MAX_TEXT_BYTES);
    check_literals(literal, n_literal, n_bytes);
    encoder e = {.tokenizer = tokenizer, .bpe = {.vocabulary = &tokenizer->vocabulary}};
    literals l = {literal, n_literal, 0};
    CALLA_TRY(split_init(&e.split, &tokenizer->splitter, err));
    calla_status status = encode_text(&e, text, n_bytes, &l, err);
    if (status == CALLA_OK) {
        *tokens = (calla_tokens){e.ids.ids, (int64_t)e.ids.n};
        e.ids.ids = NULL;
    }
    free(e.ids.ids);
    strbuf_free(&e.replaced);
    strbuf_free(&e.normalized);
    nfc_deinit(&e.nfc);
    split_deinit(&e.split);
    bpe_deinit(&e.bpe);
    return status;
}

void calla_tokens_free(calla_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (calla_tokens){0};
}

/* ---- ids to text ---- */

calla_status calla_tokenizer_decode(const calla_tokenizer *tokenizer, const int32_t *ids, int64_t n,
                                    bool skip_special, calla_text *text, calla_error *err)
{
    strbuf bytes = {0}, out = {0};
    calla_status status = CALLA_OK;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer->vocabulary.n_tokens) {
            status = error_set(err, CALLA_ERR_INPUT, "id %d at position %lld, expected 0 to %d",
                               ids[i], (long long)i, tokenizer->vocabulary.n_tokens - 1);
            goto done;
        }
        if (skip_special && calla_tokenizer_is_special(tokenizer, ids[i])) continue;
        size_t n_bytes;
        const char *token = calla_tokenizer_bytes(tokenizer, ids[i], &n_bytes);
        strbuf_append(&bytes, token, n_bytes);
    }
    if (bytes.failed) {
        status = error_set(err, CALLA_ERR_MEMORY, "no memory for a text");
        goto done;
    }
    utf8_append_replaced(&out, bytes.data, bytes.n);
    char *data;
    size_t n_out;
    CALLA_TRY_GOTO(strbuf_take(&out, &data, &n_out, err), done);
    *text = (calla_text){data, n_out};
done:
    strbuf_free(&bytes);
    return status;
}

const char *calla_tokenizer_bytes(const calla_tokenizer *tokenizer, int32_t id, size_t *n_bytes)
{
    const vocabulary *v = &tokenizer->vocabulary;
    if (id < 0 || id >= v->n_tokens) {
        *n_bytes = 0;
        return "";
    }
    *n_bytes = v->tokens[id].n_bytes;
    return v->bytes + v->tokens[id].offset;
}

/* ---- what is known of ids ---- */

static bool has_flag(const calla_tokenizer *tokenizer, int32_t id, uint8_t flag)
{
    return id >= 0 && id < tokenizer->vocabulary.n_tokens && (tokenizer->flags[id] & flag);
}

bool calla_tokenizer_is_stop(const calla_tokenizer *tokenizer, int32_t id)
{
    return has_flag(tokenizer, id, TOKEN_STOP);
}

bool calla_tokenizer_is_special(const calla_tokenizer *tokenizer, int32_t id)
{
    return has_flag(tokenizer, id, TOKEN_SPECIAL);
}

int32_t calla_tokenizer_n_tokens(const calla_tokenizer *tokenizer)
{
    return tokenizer->vocabulary.n_tokens;
}

int32_t calla_tokenizer_find(const calla_tokenizer *tokenizer, const char *text)
{
    return added_find(&tokenizer->added, text, strlen(text));
}
