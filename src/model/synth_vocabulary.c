#include "model/synth_vocabulary.h"

#include "base/memory.h"
#include "model/synth_words.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BYTES = 256, MAX_WORD = 64 };

int32_t vocabulary_byte_token(unsigned char byte)
{
    int b = byte;
    if (b <= 32) return 188 + b;
    if (b <= 126) return b - 33;
    if (b <= 160) return 94 + b;
    if (b <= 172) return b - 67;
    return b == 173 ? 255 : b - 68;
}

/* ---- tables ---- */

static uint32_t hash_bytes(const char *bytes, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    return h ^ h >> 15;
}

static uint32_t hash_pair(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

/* The slot of a text: of its token, or free. */
static int32_t *text_slot(const vocabulary *v, const char *text, size_t n)
{
    for (uint32_t i = hash_bytes(text, n);; i++) {
        int32_t *slot = &v->text_table[i & (v->table_size - 1)];
        if (*slot == 0) return slot;
        const vocabulary_token *t = &v->tokens[*slot - 1];
        if (t->n_bytes == n && memcmp(v->bytes + t->offset, text, n) == 0) return slot;
    }
}

static int32_t *pair_slot(const vocabulary *v, int32_t left, int32_t right)
{
    for (uint32_t i = hash_pair(left, right);; i++) {
        int32_t *slot = &v->pair_table[i & (v->table_size - 1)];
        if (*slot == 0) return slot;
        const vocabulary_token *t = &v->tokens[*slot - 1];
        if (t->left == left && t->right == right) return slot;
    }
}

/* Appends a token with a text that is not there yet. */
static bool append(vocabulary *v, const char *text, size_t n, int32_t left, int32_t right)
{
    int32_t *slot = text_slot(v, text, n);
    if (*slot != 0 || v->failed) return false;
    if (v->bytes_capacity - v->n_bytes < n) {
        size_t grown = v->bytes_capacity * 2 + 65536;
        char *bytes = realloc(v->bytes, grown);
        if (!bytes) {
            v->failed = true;
            return false;
        }
        v->bytes = bytes;
        v->bytes_capacity = grown;
    }
    memcpy(v->bytes + v->n_bytes, text, n);
    v->tokens[v->n_tokens] = (vocabulary_token){(uint32_t)v->n_bytes, (uint32_t)n, left, right};
    v->n_bytes += n;
    *slot = ++v->n_tokens;
    if (left >= 0) {
        *pair_slot(v, left, right) = v->n_tokens;
        v->n_merges++;
    }
    return true;
}

static bool is_full(const vocabulary *v)
{
    return v->failed || v->n_merges >= v->limit;
}

/* Adds the token left + right; false if its text exists already or nothing more fits. */
static bool add_merge(vocabulary *v, int32_t left, int32_t right)
{
    const vocabulary_token *a = &v->tokens[left], *b = &v->tokens[right];
    char text[2 * MAX_WORD];
    if (is_full(v) || a->n_bytes + b->n_bytes > MAX_WORD) return false;
    memcpy(text, v->bytes + a->offset, a->n_bytes);
    memcpy(text + a->n_bytes, v->bytes + b->offset, b->n_bytes);
    return append(v, text, a->n_bytes + b->n_bytes, left, right);
}

/* ---- words ---- */

/* BPE: merges the adjacent pair of lowest rank until there is none. */
static int encode(const vocabulary *v, const char *text, size_t n, int32_t ids[MAX_WORD])
{
    int count = (int)n;
    for (int i = 0; i < count; i++) ids[i] = vocabulary_byte_token((unsigned char)text[i]);
    for (;;) {
        int32_t best = INT32_MAX;
        int at = -1;
        for (int i = 0; i + 1 < count; i++) {
            int32_t made = *pair_slot(v, ids[i], ids[i + 1]) - 1;
            if (made >= 0 && made < best) {
                best = made;
                at = i;
            }
        }
        if (at < 0) return count;
        ids[at] = best;
        memmove(ids + at + 1, ids + at + 2, (size_t)(count - at - 2) * sizeof *ids);
        count--;
    }
}

/* Makes a text one token, by merges of the pieces it is encoded to now, from the left. Gives up if
 * a piece that is needed exists with another merge. */
static void add_text(vocabulary *v, const char *text, size_t n)
{
    int32_t ids[MAX_WORD];
    assert(n > 0 && n <= MAX_WORD);
    while (!is_full(v) && encode(v, text, n, ids) > 1)
        if (!add_merge(v, ids[0], ids[1])) return;
}

enum case_rule { AS_IS, CAPITAL };

/* Adds each entry of a list separated by spaces, after `prefix`. */
static void add_list(vocabulary *v, const char *list, const char *prefix, enum case_rule rule)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, " ");
        char text[MAX_WORD];
        int m = snprintf(text, sizeof text, "%s%.*s", prefix, (int)n, p);
        char *first = text + strlen(prefix);
        if (rule == CAPITAL) *first = (char)toupper((unsigned char)*first);
        if (n > 0 && m < MAX_WORD) add_text(v, text, (size_t)m);
        p += n + (p[n] == ' ');
    }
}

static void add_runs(vocabulary *v, char c, int longest)
{
    char run[MAX_WORD];
    memset(run, c, sizeof run);
    for (int n = 2; n <= longest; n++) add_text(v, run, (size_t)n);
}

/* ---- characters ---- */

/* Characters [first, last] in UTF-8. */
static void add_characters(vocabulary *v, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last && !is_full(v); c++) {
        char s[4];
        size_t n = 0;
        if (c < 0x800) {
            s[n++] = (char)(0xc0 | c >> 6);
        } else if (c < 0x10000) {
            s[n++] = (char)(0xe0 | c >> 12);
            s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        } else {
            s[n++] = (char)(0xf0 | c >> 18);
            s[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            s[n++] = (char)(0x80 | (c >> 6 & 0x3f));
        }
        s[n++] = (char)(0x80 | (c & 0x3f));
        add_text(v, s, n);
    }
}

static void add_scripts(vocabulary *v)
{
    add_characters(v, 0xa1, 0x17f);      /* Latin letters with marks */
    add_characters(v, 0x2010, 0x2026);   /* dashes, quotes, ellipsis */
    add_characters(v, 0x391, 0x3c9);     /* Greek */
    add_characters(v, 0x410, 0x44f);     /* Cyrillic */
    add_characters(v, 0x5d0, 0x5ea);     /* Hebrew */
    add_characters(v, 0x621, 0x64a);     /* Arabic */
    add_characters(v, 0x905, 0x939);     /* Devanagari */
    add_characters(v, 0x3001, 0x3002);   /* ideographic comma and full stop */
    add_characters(v, 0x3041, 0x30fe);   /* kana */
    add_characters(v, 0xff01, 0xff5e);   /* full-width forms */
    add_characters(v, 0x4e00, 0x9fa5);   /* CJK ideographs */
    add_characters(v, 0xac00, 0xb9ff);   /* Hangul */
    add_characters(v, 0x1f300, 0x1f64f); /* pictographs */
}

/* ---- the rest ---- */

static bool is_word_like(const vocabulary *v, int32_t id, bool ending)
{
    const vocabulary_token *t = &v->tokens[id];
    const char *s = v->bytes + t->offset;
    uint32_t i = !ending && s[0] == ' ';
    if (t->n_bytes - i < (ending ? 2u : 3u)) return false;
    for (; i < t->n_bytes; i++)
        if (!isalpha((unsigned char)s[i]) || (ending && !islower((unsigned char)s[i])))
            return false;
    return true;
}

/* Compounds of the words and word parts there are, until the vocabulary is full. */
static void add_compounds(vocabulary *v)
{
    int32_t n = v->n_tokens;
    for (int32_t right = N_BYTES; right < n && !is_full(v); right++) {
        if (!is_word_like(v, right, true)) continue;
        for (int32_t left = N_BYTES; left < n && !is_full(v); left++)
            if (is_word_like(v, left, false)) add_merge(v, left, right);
    }
}

/* Tokens no merge gives: compounds whose pair is left without one. */
static void add_unreachable(vocabulary *v, int32_t n)
{
    for (int32_t left = v->n_tokens - 1; n > 0 && left >= N_BYTES && !v->failed; left--) {
        const vocabulary_token *t = &v->tokens[left];
        char text[MAX_WORD + 4];
        memcpy(text, v->bytes + t->offset, t->n_bytes);
        memcpy(text + t->n_bytes, "'zz", 3);
        n -= append(v, text, t->n_bytes + 3, -1, -1);
    }
}

static void grow(vocabulary *v)
{
    for (int b = 0; b < N_BYTES; b++) { /* ids in order: find the byte of each */
        for (int c = 0; c < N_BYTES; c++) {
            char byte = (char)c;
            if (vocabulary_byte_token((unsigned char)c) == b) append(v, &byte, 1, -1, -1);
        }
    }
    add_runs(v, ' ', 16);
    add_runs(v, '\n', 4);
    add_runs(v, '\t', 4);
    add_list(v, synth_pairs, "", AS_IS);
    add_list(v, synth_endings, "", AS_IS);
    add_list(v, synth_openings, " ", AS_IS);
    add_list(v, synth_marks, "", AS_IS);
    add_list(v, synth_words, " ", AS_IS);
    add_list(v, synth_words, " ", CAPITAL);
    add_list(v, synth_words, "", CAPITAL);
    add_list(v, synth_words, "", AS_IS);
    add_list(v, synth_code, " ", AS_IS);
    add_list(v, synth_code, "", AS_IS);
    add_list(v, synth_marks, " ", AS_IS);
    add_runs(v, ' ', 32);
    add_scripts(v);
    add_compounds(v);
}

calla_status vocabulary_create(int32_t n_tokens, int32_t n_unreachable, vocabulary *v,
                               calla_error *err)
{
    assert(n_tokens > N_BYTES + n_unreachable);
    *v = (vocabulary){.limit = n_tokens - N_BYTES - n_unreachable, .table_size = 1};
    while (v->table_size < 3 * (uint32_t)n_tokens) v->table_size *= 2;
    v->tokens = calloc((size_t)n_tokens, sizeof *v->tokens);
    v->text_table = calloc(v->table_size, sizeof *v->text_table);
    v->pair_table = calloc(v->table_size, sizeof *v->pair_table);
    v->failed = !v->tokens || !v->text_table || !v->pair_table;
    if (!v->failed) {
        grow(v);
        add_unreachable(v, n_unreachable);
    }
    if (v->failed) {
        vocabulary_free(v);
        return error_set(err, CALLA_ERR_MEMORY, "no memory for a vocabulary of %d", n_tokens);
    }
    assert(v->n_tokens == n_tokens); /* the lists and compounds suffice for every shape */
    return CALLA_OK;
}

void vocabulary_free(vocabulary *v)
{
    free(v->tokens);
    free(v->bytes);
    free(v->text_table);
    free(v->pair_table);
    *v = (vocabulary){0};
}
