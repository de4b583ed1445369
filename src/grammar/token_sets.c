#include "grammar/token_sets.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct token_sets {
    const trie *tokens;
    size_t n_words;
    pthread_mutex_t lock;
    token_set sets[TOKEN_SETS_KEPT]; /* masks NULL = none */
    uint64_t now;
};

/* ---- one set ---- */

calla_status token_set_begin(token_set *s, size_t n_words, calla_error *err)
{
    *s = (token_set){.n_words = n_words};
    s->masks = calloc((TOKEN_SET_SHORT + 1) * n_words, sizeof *s->masks);
    return s->masks ? CALLA_OK : error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
}

calla_status token_set_add(token_set *s, int32_t token, uint32_t count, calla_error *err)
{
    void *longer = s->longer;
    if (count <= TOKEN_SET_SHORT) {
        s->masks[count * s->n_words + (size_t)token / 32] |= 1u << (token % 32);
        return CALLA_OK;
    }
    CALLA_TRY(
        mem_grow(&longer, &s->capacity, s->n_longer + 1, sizeof *s->longer, "the tokens", err));
    s->longer = longer;
    s->longer[s->n_longer++] = (counted_token){token, count};
    return CALLA_OK;
}

static int compare_counts(const void *x, const void *y)
{
    const counted_token *a = x, *b = y;
    return a->count < b->count ? -1 : a->count > b->count;
}

void token_set_end(token_set *s)
{
    for (size_t i = s->n_words; i < (TOKEN_SET_SHORT + 1) * s->n_words; i++)
        s->masks[i] |= s->masks[i - s->n_words];
    if (s->n_longer > 0) qsort(s->longer, s->n_longer, sizeof *s->longer, compare_counts);
}

void token_set_free(token_set *s)
{
    free(s->masks);
    free(s->longer);
    *s = (token_set){0};
}

void token_set_allow(const token_set *s, uint32_t n, uint32_t *mask)
{
    const uint32_t *from = s->masks + (n < TOKEN_SET_SHORT ? n : TOKEN_SET_SHORT) * s->n_words;
    for (size_t i = 0; i < s->n_words; i++) mask[i] |= from[i];
    for (size_t i = 0; i < s->n_longer && s->longer[i].count <= n; i++)
        mask[s->longer[i].token / 32] |= 1u << (s->longer[i].token % 32);
}

/* ---- all ---- */

calla_status token_sets_create(const trie *tokens, size_t n_words, token_sets **out,
                               calla_error *err)
{
    token_sets *s = calloc(1, sizeof *s);
    if (!s) return error_set(err, CALLA_ERR_MEMORY, "no memory for the tokens");
    s->tokens = tokens;
    s->n_words = n_words;
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return CALLA_OK;
}

void token_sets_free(token_sets *s)
{
    if (!s) return;
    for (int i = 0; i < TOKEN_SETS_KEPT; i++) token_set_free(&s->sets[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Walks the tree as far as it is made of the characters. */
static calla_status fill(const token_sets *s, const lead_set *chars, token_set *set)
{
    const trie *t = s->tokens;
    char_place places[TRIE_MAX_BYTES + 1] = {CHAR_NONE};
    uint32_t counts[TRIE_MAX_BYTES + 1] = {0};
    CALLA_TRY(token_set_begin(set, s->n_words, NULL));
    set->chars = *chars;
    for (uint32_t i = 0; i < t->n_nodes;) {
        const trie_node *node = &t->nodes[i];
        uint32_t d = node->depth;
        bool begins = places[d - 1] == CHAR_NONE;
        places[d] = char_place_next(places[d - 1], node->byte);
        if (places[d] == CHAR_WRONG || (begins && !lead_set_has(chars, node->byte))) {
            i = node->skip;
            continue;
        }
        counts[d] = counts[d - 1] + begins;
        i++;
        for (uint32_t k = node->first; k < t->nodes[i].first; k++)
            CALLA_TRY(token_set_add(set, t->ids[k], counts[d], NULL));
    }
    token_set_end(set);
    return CALLA_OK;
}

/* The set of the characters, or a place for it: the one that nobody has used for the longest time;
 * NULL: all are in use. */
static token_set *find(token_sets *s, const lead_set *chars)
{
    token_set *oldest = NULL;
    for (int i = 0; i < TOKEN_SETS_KEPT; i++) {
        token_set *set = &s->sets[i];
        if (set->masks && memcmp(&set->chars, chars, sizeof *chars) == 0) return set;
        if (atomic_load(&set->n_users) > 0) continue;
        if (!oldest || set->last_used < oldest->last_used) oldest = set;
    }
    return oldest;
}

const token_set *token_sets_get(token_sets *s, const lead_set *chars)
{
    pthread_mutex_lock(&s->lock);
    token_set *set = find(s, chars);
    if (set && (!set->masks || memcmp(&set->chars, chars, sizeof *chars) != 0)) {
        token_set_free(set);
        if (fill(s, chars, set) != CALLA_OK) {
            token_set_free(set);
            set = NULL;
        }
    }
    if (set) {
        atomic_fetch_add(&set->n_users, 1);
        set->last_used = ++s->now;
    }
    pthread_mutex_unlock(&s->lock);
    return set;
}

void token_sets_put(token_sets *s, const token_set *set)
{
    atomic_fetch_sub(&s->sets[set - s->sets].n_users, 1);
}
