/* The two large tables of tokenizer.json: model.vocab and model.merges (MODEL.md 5.1, 5.3).
 *
 * They are found by a quick scan, read by a strict parser of exactly their form, and cut out of the
 * text; what is left is checked by a real JSON parser elsewhere, and with it what the scan took on
 * trust. */
#include "base/memory.h"
#include "model/tokenizer.h"
#include "model/tokenizer_scan.h"
#include "model/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- characters that stand for bytes ---- */

enum { N_CHARACTERS = 0x144 };

static bool stands_for_itself(int c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
}

int32_t byte_level_character(unsigned char byte)
{
    if (stands_for_itself(byte)) return byte;
    int32_t c = 0x100;
    for (int b = 0; b < byte; b++) c += !stands_for_itself(b);
    return c;
}

/* bytes[c] = the byte of character c, or -1 */
static void fill_bytes(int16_t bytes[N_CHARACTERS])
{
    memset(bytes, 0xff, N_CHARACTERS * sizeof bytes[0]);
    for (int b = 0; b < 256; b++) bytes[byte_level_character((unsigned char)b)] = (int16_t)b;
}

/* Replaces characters by the bytes they stand for: out [n_bytes], *n_out of them used. False if
 * one stands for none. */
static bool characters_to_bytes(const int16_t table[N_CHARACTERS], const char *text, size_t n_bytes,
                                char *out, size_t *n_out)
{
    *n_out = 0;
    for (size_t i = 0, length; i < n_bytes; i += length) {
        int32_t point = utf8_decode(text + i, &length);
        if (point >= N_CHARACTERS || table[point] < 0) return false;
        out[(*n_out)++] = (char)table[point];
    }
    return true;
}

/* ---- the vocabulary ---- */

static uint32_t hash_bytes(const char *bytes, size_t n_bytes)
{
    uint64_t h = n_bytes * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n_bytes - i < 8 ? n_bytes - i : 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t)(h ^ h >> 17);
}

/* The slot of a byte string, or the empty one where it would go. */
static uint32_t *find_slot(const vocabulary *v, const char *bytes, size_t n_bytes)
{
    for (uint32_t i = hash_bytes(bytes, n_bytes);; i++) {
        uint32_t *slot = &v->slots[i & v->slot_mask];
        if (*slot == EMPTY_SLOT) return slot;
        const token_span *t = &v->tokens[*slot];
        if (t->n_bytes == n_bytes && memcmp(v->bytes + t->offset, bytes, n_bytes) == 0) return slot;
    }
}

int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t n_bytes)
{
    uint32_t id = *find_slot(v, bytes, n_bytes);
    return id == EMPTY_SLOT ? -1 : (int32_t)id;
}

static calla_status reserve_bytes(vocabulary *v, size_t n_bytes, calla_error *err)
{
    size_t need;
    if (!size_add(v->n_bytes, n_bytes, &need) || need > UINT32_MAX)
        return error_set(err, CALLA_ERR_INPUT, "the tokens' texts exceed 4 GB");
    return mem_grow((void **)&v->bytes, &v->bytes_capacity, need, 1, "token texts", err);
}

calla_status vocabulary_append(vocabulary *v, const char *bytes, size_t n_bytes, calla_error *err)
{
    CALLA_TRY(reserve_bytes(v, n_bytes, err));
    CALLA_TRY(mem_grow((void **)&v->tokens, &v->tokens_capacity, (size_t)v->n_tokens + 1,
                       sizeof v->tokens[0], "tokens", err));
    if (n_bytes) memcpy(v->bytes + v->n_bytes, bytes, n_bytes);
    v->tokens[v->n_tokens++] = (token_span){(uint32_t)v->n_bytes, (uint32_t)n_bytes};
    v->n_bytes += n_bytes;
    return CALLA_OK;
}

/* An entry as it stands in the file. */
typedef struct entry {
    token_span text;
    int32_t id;
    bool is_bytes; /* every character stands for a byte: merges can make it */
} entry;

typedef struct entry_list {
    entry *entries; /* [n], in the file's order */
    size_t n, capacity;
} entry_list;

static calla_status read_entries(scan_cursor *c, const int16_t table[N_CHARACTERS], vocabulary *v,
                                 entry_list *list)
{
    if (!scan_accept(c, '{')) return scan_error(c, "an object");
    if (scan_accept(c, '}')) return CALLA_OK;
    do {
        const char *string;
        size_t n, n_token;
        entry e;
        CALLA_TRY(scan_string(c, &string, &n));
        CALLA_TRY(reserve_bytes(v, n + 1, c->err));
        char *token = v->bytes + v->n_bytes;
        e.is_bytes = characters_to_bytes(table, string, n, token, &n_token);
        if (!e.is_bytes) { /* such a token can only be decoded, and stands for its own text */
            if (n) memcpy(token, string, n);
            n_token = n;
        }
        if (!scan_accept(c, ':')) return scan_error(c, "':'");
        CALLA_TRY(scan_number(c, TOKENIZER_MAX_TOKENS - 1, &e.id));
        e.text = (token_span){(uint32_t)v->n_bytes, (uint32_t)n_token};
        v->n_bytes += n_token;
        CALLA_TRY(mem_grow((void **)&list->entries, &list->capacity, list->n + 1,
                           sizeof list->entries[0], "vocabulary", c->err));
        list->entries[list->n++] = e;
    } while (scan_accept(c, ','));
    if (!scan_accept(c, '}')) return scan_error(c, "',' or '}'");
    return CALLA_OK;
}

static uint32_t table_mask(size_t n)
{
    uint32_t capacity = 16;
    while (capacity < 2 * n) capacity *= 2;
    return capacity - 1;
}

/* Puts the entries in the order of their ids, which must be 0 ... n-1, and makes the index. */
static calla_status index_entries(const scan_cursor *c, const entry_list *list, vocabulary *v)
{
    size_t n = list->n;
    if (n > TOKENIZER_MAX_TOKENS)
        return error_set(c->err, CALLA_ERR_INPUT, "%s: model.vocab has %zu tokens, above %d",
                         c->path, n, TOKENIZER_MAX_TOKENS);
    CALLA_TRY(mem_grow((void **)&v->tokens, &v->tokens_capacity, n, sizeof v->tokens[0], "tokens",
                       c->err));
    v->slot_mask = table_mask(n);
    CALLA_TRY(mem_alloc((size_t)v->slot_mask + 1, sizeof v->slots[0], "token index",
                        (void **)&v->slots, c->err));
    memset(v->slots, 0xff, ((size_t)v->slot_mask + 1) * sizeof v->slots[0]);
    for (size_t i = 0; i < n; i++) v->tokens[i] = (token_span){UINT32_MAX, 0};
    for (size_t i = 0; i < n; i++) {
        const entry *e = &list->entries[i];
        const char *bytes = v->bytes + e->text.offset;
        char shown[UTF8_SHOWN_BYTES];
        if ((size_t)e->id >= n)
            return error_set(c->err, CALLA_ERR_INPUT,
                             "%s: model.vocab has %zu tokens and gives '%s' the id %d; ids must "
                             "be 0 to %zu without gaps",
                             c->path, n, utf8_show(bytes, e->text.n_bytes, shown), e->id, n - 1);
        if (v->tokens[e->id].offset != UINT32_MAX)
            return error_set(c->err, CALLA_ERR_INPUT,
                             "%s: model.vocab gives the id %d twice, "
                             "last to '%s'",
                             c->path, e->id, utf8_show(bytes, e->text.n_bytes, shown));
        v->tokens[e->id] = e->text;
        if (!e->is_bytes) continue;
        uint32_t *slot = find_slot(v, bytes, e->text.n_bytes);
        if (*slot != EMPTY_SLOT)
            return error_set(c->err, CALLA_ERR_INPUT,
                             "%s: model.vocab has '%s' twice, as %u "
                             "and as %d",
                             c->path, utf8_show(bytes, e->text.n_bytes, shown), *slot, e->id);
        *slot = (uint32_t)e->id;
    }
    v->n_tokens = (int32_t)n;
    return CALLA_OK;
}

static calla_status index_bytes(const scan_cursor *c, vocabulary *v)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        int32_t id = vocabulary_find(v, &byte, 1);
        if (id < 0)
            return error_set(c->err, CALLA_ERR_INPUT,
                             "%s: model.vocab has no token for the byte %d (U+%04X)", c->path, b,
                             (unsigned)byte_level_character((unsigned char)b));
        v->byte_ids[b] = (uint32_t)id;
    }
    return CALLA_OK;
}

static calla_status parse_vocab(scan_cursor *c, const int16_t table[N_CHARACTERS], vocabulary *v)
{
    entry_list list = {0};
    calla_status status = read_entries(c, table, v, &list);
    if (status == CALLA_OK) status = index_entries(c, &list, v);
    if (status == CALLA_OK) status = index_bytes(c, v);
    free(list.entries);
    return status;
}

/* ---- merges ---- */

/* The two sides of a merge, as bytes one after the other. */
typedef struct merge_text {
    char *bytes; /* [n_left + n_right] */
    size_t capacity, n_left, n_right;
} merge_text;

static calla_status merge_error(const scan_cursor *c, int32_t rank, const char *side, size_t n,
                                const char *problem)
{
    char shown[UTF8_SHOWN_BYTES];
    return error_set(c->err, CALLA_ERR_INPUT, "%s: model.merges[%d]: '%s' %s", c->path, rank,
                     utf8_show(side, n, shown), problem);
}

/* Puts a side's bytes at `at` of m->bytes. */
static calla_status read_side(scan_cursor *c, const int16_t table[N_CHARACTERS], int32_t rank,
                              const char *side, size_t n, merge_text *m, size_t at, size_t *n_side)
{
    CALLA_TRY(mem_grow((void **)&m->bytes, &m->capacity, at + n + 1, 1, "a merge", c->err));
    if (!characters_to_bytes(table, side, n, m->bytes + at, n_side) || *n_side == 0)
        return merge_error(c, rank, side, n, "is not a token");
    return CALLA_OK;
}

/* "left right", or ["left", "right"] as re-saved files have it. */
static calla_status read_merge(scan_cursor *c, const int16_t table[N_CHARACTERS], int32_t rank,
                               merge_text *m)
{
    const char *string;
    size_t n;
    if (scan_accept(c, '[')) {
        CALLA_TRY(scan_string(c, &string, &n));
        CALLA_TRY(read_side(c, table, rank, string, n, m, 0, &m->n_left));
        if (!scan_accept(c, ',')) return scan_error(c, "','");
        CALLA_TRY(scan_string(c, &string, &n));
        CALLA_TRY(read_side(c, table, rank, string, n, m, m->n_left, &m->n_right));
        return scan_accept(c, ']') ? CALLA_OK : scan_error(c, "']'");
    }
    CALLA_TRY(scan_string(c, &string, &n));
    const char *blank = memchr(string, ' ', n);
    size_t n_left = blank ? (size_t)(blank - string) : n;
    if (!blank || memchr(blank + 1, ' ', n - n_left - 1))
        return merge_error(c, rank, string, n, "is not two tokens with a space between");
    CALLA_TRY(read_side(c, table, rank, string, n_left, m, 0, &m->n_left));
    return read_side(c, table, rank, blank + 1, n - n_left - 1, m, m->n_left, &m->n_right);
}

/* A pair of ids, left << 20 | right. */
typedef uint64_t id_pair;

/* Ids of the sides and of what they make. */
static calla_status resolve_merge(const scan_cursor *c, const vocabulary *v, int32_t rank,
                                  const merge_text *m, id_pair *pair, uint32_t *merged)
{
    const char *p = m->bytes;
    int32_t left = vocabulary_find(v, p, m->n_left);
    if (left < 0) return merge_error(c, rank, p, m->n_left, "is not in model.vocab");
    int32_t right = vocabulary_find(v, p + m->n_left, m->n_right);
    if (right < 0) return merge_error(c, rank, p + m->n_left, m->n_right, "is not in model.vocab");
    int32_t both = vocabulary_find(v, p, m->n_left + m->n_right);
    if (both < 0) return merge_error(c, rank, p, m->n_left + m->n_right, "is not in model.vocab");
    *pair = (id_pair)left << 20 | (id_pair)right;
    *merged = (uint32_t)both;
    return CALLA_OK;
}

/* Enters pairs [n_merges] into the table. */
static calla_status index_merges(const scan_cursor *c, const id_pair *pairs, vocabulary *v)
{
    v->merge_mask = table_mask(v->n_merges);
    CALLA_TRY(mem_alloc((size_t)v->merge_mask + 1, sizeof v->merges[0], "merges",
                        (void **)&v->merges, c->err));
    memset(v->merges, 0xff, ((size_t)v->merge_mask + 1) * sizeof v->merges[0]);
    for (uint32_t i = 0; i < v->n_merges; i++) {
        merge_slot *slot =
            vocabulary_slot(v, (uint32_t)(pairs[i] >> 20), (uint32_t)(pairs[i] & 0xfffff));
        if (*slot != EMPTY_MERGE)
            return error_set(c->err, CALLA_ERR_INPUT,
                             "%s: model.merges[%u] is the same pair as model.merges[%u]", c->path,
                             i, (uint32_t)(*slot & 0xffffff));
        *slot = pairs[i] << 24 | i;
    }
    return CALLA_OK;
}

static calla_status read_merges(scan_cursor *c, const int16_t table[N_CHARACTERS], vocabulary *v,
                                merge_text *m, id_pair **pairs, size_t *capacity)
{
    if (!scan_accept(c, '[')) return scan_error(c, "an array");
    if (scan_accept(c, ']')) return CALLA_OK;
    do {
        uint32_t rank = v->n_merges;
        if (rank >= TOKENIZER_MAX_MERGES)
            return error_set(c->err, CALLA_ERR_INPUT, "%s: model.merges has more than %d entries",
                             c->path, TOKENIZER_MAX_MERGES);
        CALLA_TRY(
            mem_grow((void **)pairs, capacity, (size_t)rank + 1, sizeof **pairs, "merges", c->err));
        CALLA_TRY(mem_grow((void **)&v->merged, &v->merged_capacity, (size_t)rank + 1,
                           sizeof v->merged[0], "merges", c->err));
        CALLA_TRY(read_merge(c, table, (int32_t)rank, m));
        CALLA_TRY(resolve_merge(c, v, (int32_t)rank, m, &(*pairs)[rank], &v->merged[rank]));
        v->n_merges++;
    } while (scan_accept(c, ','));
    return scan_accept(c, ']') ? CALLA_OK : scan_error(c, "',' or ']'");
}

static calla_status parse_merges(scan_cursor *c, const int16_t table[N_CHARACTERS], vocabulary *v)
{
    merge_text m = {0};
    id_pair *pairs = NULL;
    size_t capacity = 0;
    calla_status status = read_merges(c, table, v, &m, &pairs, &capacity);
    if (status == CALLA_OK) status = index_merges(c, pairs, v);
    free(pairs);
    free(m.bytes);
    return status;
}

/* ---- the whole ---- */

/* Appends the text with the two ranges, in either order, replaced by "{}" and "[]". */
static void cut_tables(const char *text, size_t n_bytes, text_range vocab, text_range merges,
                       strbuf *rest, text_cut cuts[2])
{
    bool vocab_first = vocab.begin < merges.begin;
    text_range r[2] = {vocab_first ? vocab : merges, vocab_first ? merges : vocab};
    const char *instead[2] = {vocab_first ? "{}" : "[]", vocab_first ? "[]" : "{}"};
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        strbuf_append(rest, text + at, r[i].begin - at);
        strbuf_puts(rest, instead[i]);
        cuts[i] = (text_cut){r[i].begin, r[i].end - r[i].begin - 2};
        at = r[i].end;
    }
    strbuf_append(rest, text + at, n_bytes - at);
}

calla_status vocabulary_parse(const char *text, size_t n_bytes, const char *path, vocabulary *v,
                              strbuf *rest, text_cut cuts[2], calla_error *err)
{
    text_range vocab = {0}, merges = {0};
    int16_t table[N_CHARACTERS];
    *v = (vocabulary){0};
    fill_bytes(table);
    scan_find_tables(text, n_bytes, &vocab, &merges);
    if (vocab.end == 0) return error_set(err, CALLA_ERR_INPUT, "%s: no object model.vocab", path);
    if (merges.end == 0) return error_set(err, CALLA_ERR_INPUT, "%s: no array model.merges", path);
    scan_cursor c = {text, vocab.begin, vocab.end, path, "vocab", err, {0}};
    calla_status status = parse_vocab(&c, table, v);
    if (status == CALLA_OK) {
        c.at = merges.begin, c.end = merges.end, c.table = "merges";
        status = parse_merges(&c, table, v);
    }
    strbuf_free(&c.scratch);
    if (status != CALLA_OK) return status;
    cut_tables(text, n_bytes, vocab, merges, rest, cuts);
    return CALLA_OK;
}

void vocabulary_deinit(vocabulary *v)
{
    free(v->bytes);
    free(v->tokens);
    mem_free(v->slots);
    mem_free(v->merges);
    free(v->merged);
    *v = (vocabulary){0};
}
