/* The tokenizer from inside: what its files share (MODEL.md 5). From text to ids:
 *
 *   tokenizer.c            the public functions; cuts the text at added tokens (tokenizer_added.c)
 *   utf8.c                 replaces broken UTF-8 in a span between added tokens
 *   tokenizer_nfc.c        normalises it
 *   tokenizer_split.c      cuts it into pieces by the pattern of tokenizer.json, with the classes
 *                          of tokenizer_unicode.c
 *   tokenizer_bpe.c        turns a piece into ids by merges
 *
 * and tokenizer_load.c opens the files, the two large tables of tokenizer.json through
 * tokenizer_tables.c and tokenizer_scan.c. Every step takes time linear in the text, a factor log n
 * in tokenizer_bpe.c aside. */
#ifndef CALLA_MODEL_TOKENIZER_H
#define CALLA_MODEL_TOKENIZER_H

#include "base/strbuf.h"

#include <calla/model.h>
#include <pcre2.h>

enum {
    TOKENIZER_MAX_TOKENS = 1 << 20,
    TOKENIZER_MAX_MERGES = (1 << 24) - 1,
    TOKENIZER_MAX_ADDED = 1 << 16,
    TOKENIZER_MAX_ADDED_BYTES = 256, /* bounds the work of a match at one position */
    TOKENIZER_MAX_TEXT_BYTES =
        1 << 30, /* normalised at most 3 times as long: offsets fit 32 bits */
    TOKENIZER_MAX_PATTERN_BYTES = 4096,
};

/* ---- tables of the BPE model ---- */

/* Bytes of a token within vocabulary.bytes. */
typedef struct token_span {
    uint32_t offset, n_bytes;
} token_span;

/* From pairs of ids to ranks: open addressing, linear probing. A slot is (left, right, rank) in 20,
 * 20 and 24 bits, so that the 35B's table takes 4 MB and most lookups one cache line. */
typedef uint64_t merge_slot;
#define EMPTY_MERGE UINT64_MAX

typedef struct vocabulary {
    char *bytes; /* the texts of all tokens, one after the other */
    size_t n_bytes, bytes_capacity;
    token_span *tokens; /* [n_tokens] */
    size_t tokens_capacity;
    int32_t n_tokens;
    uint32_t *slots; /* [slot_mask + 1] ids by text, EMPTY_SLOT = empty */
    uint32_t slot_mask;
    merge_slot *merges; /* [merge_mask + 1] */
    uint32_t merge_mask;
    uint32_t *merged; /* [n_merges] what the pair of each rank becomes */
    size_t merged_capacity;
    uint32_t n_merges;
    uint32_t byte_ids[256]; /* ids of the single bytes */
} vocabulary;

#define NO_RANK    UINT32_MAX
#define EMPTY_SLOT UINT32_MAX

/* Parses model.vocab and model.merges, wherever they stand in the text of a tokenizer.json (valid
 * UTF-8; `path` names it in errors), and gives the rest of the text, which still says "vocab" and
 * "merges" but with empty values: *rest, with the places cut out in cuts[2]. A JSON tree of a
 * quarter of a million entries twice would take half a second; this takes a tenth of that.
 * vocabulary_deinit is due also after a failure. */
typedef struct text_cut {
    size_t at;      /* byte of the original text where the cut starts */
    size_t n_bytes; /* how much shorter the rest is there; 0 = no cut */
} text_cut;
calla_status vocabulary_parse(const char *text, size_t n_bytes, const char *path, vocabulary *v,
                              strbuf *rest, text_cut cuts[2], calla_error *err);
void vocabulary_deinit(vocabulary *v);

/* Appends a token's text; its id is the old n_tokens. */
calla_status vocabulary_append(vocabulary *v, const char *bytes, size_t n_bytes, calla_error *err);
/* The id of a byte string among the BPE tokens, or -1. */
int32_t vocabulary_find(const vocabulary *v, const char *bytes, size_t n_bytes);

/* The slot of a pair, or the empty one where it would go. */
static inline merge_slot *vocabulary_slot(const vocabulary *v, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 20 | right;
    for (uint32_t i = (uint32_t)(pair * 0x9e3779b97f4a7c15u >> 32);; i++) {
        merge_slot *slot = &v->merges[i & v->merge_mask];
        if (*slot >> 24 == pair || *slot == EMPTY_MERGE) return slot;
    }
}

/* The rank of a pair, NO_RANK if it cannot be merged. */
static inline uint32_t vocabulary_rank(const vocabulary *v, uint32_t left, uint32_t right)
{
    merge_slot slot = *vocabulary_slot(v, left, right);
    return slot == EMPTY_MERGE ? NO_RANK : (uint32_t)(slot & 0xffffff);
}

/* The character that stands for a byte in tokenizer.json (MODEL.md 5.3, rule 4). */
int32_t byte_level_character(unsigned char byte);

/* ---- steps of encoding ---- */

/* Growing list of ids. */
typedef struct id_list {
    int32_t *ids;
    size_t n, capacity;
} id_list;

/* Merges a piece of text; working memory is kept from piece to piece. */
typedef struct bpe_symbol {
    uint32_t id;
    uint32_t rank;       /* of the pair with the next symbol, NO_RANK if it cannot be merged */
    uint32_t prev, next; /* NO_SYMBOL at the ends */
} bpe_symbol;

typedef struct bpe_node {
    uint32_t symbol; /* the left one of a pair */
    uint32_t next;
} bpe_node;

typedef struct bpe {
    const vocabulary *vocabulary;
    bpe_symbol *symbols;
    size_t symbols_capacity;
    bpe_node *nodes; /* of the buckets' lists; unused ones in a list from free_node */
    size_t nodes_capacity;
    uint32_t n_nodes, free_node;
    uint32_t *buckets; /* [n_merges] lists of pairs by rank */
    uint64_t *used;    /* [ceil(n_merges / 64)] one bit a bucket that is not empty */
    uint32_t *sweep;   /* the pairs of the bucket in turn */
    size_t sweep_capacity;
    uint64_t *heap; /* rank << 32 | symbol of pairs below the bucket in turn, smallest first */
    size_t heap_capacity, n_heap;
} bpe;

/* Zeroed but for the vocabulary. */
calla_status bpe_encode(bpe *b, const char *piece, size_t n_bytes, id_list *out, calla_error *err);
void bpe_deinit(bpe *b);

/* NFC. nfc_is_certain is a quick check that only looks at lead bytes; text without that certainty
 * goes through nfc_append, which takes valid UTF-8. */
typedef struct nfc {
    int32_t *points; /* decomposed code points */
    size_t n, capacity;
    int32_t *marks; /* for sorting long runs of marks */
    size_t marks_capacity;
} nfc;

bool nfc_is_certain(const char *text, size_t n_bytes);
calla_status nfc_append(nfc *work, const char *text, size_t n_bytes, strbuf *out, calla_error *err);
void nfc_deinit(nfc *work);

/* The pre-tokenizer's pattern. */
typedef struct splitter {
    pcre2_code *code;
} splitter;

/* Rewrites the pattern for PCRE2 so that it means what it means to the library that trained with
 * it, and compiles it. Patterns outside the part of the language where that can be promised are
 * CALLA_ERR_INPUT with the construct seen. */
calla_status splitter_init(splitter *s, const char *pattern, size_t n_bytes, calla_error *err);
void splitter_deinit(splitter *s);
/* The rewriting alone, for tests. */
calla_status pattern_rewrite(const char *pattern, size_t n_bytes, strbuf *out, calla_error *err);

/* One pass over one text. */
typedef struct split_pass {
    const pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    strbuf shadow;
    const char *subject; /* the text, or `shadow` */
    size_t n_bytes, at;
    size_t match_begin, match_end; /* the next match, or n_bytes twice */
} split_pass;

calla_status split_init(split_pass *s, const splitter *by, calla_error *err);
/* Starts over on a text, which is borrowed until the last piece. */
calla_status split_begin(split_pass *s, const char *text, size_t n_bytes, calla_error *err);
/* The next piece [*begin, *end) of the text; *begin == *end when there is none left. */
calla_status split_next(split_pass *s, size_t *begin, size_t *end, calla_error *err);
void split_deinit(split_pass *s);

/* Whether the text has letters, marks or numbers that PCRE2's Unicode tables may not know, and its
 * copy in which an older character of the same class and length stands for each. */
bool unicode_has_newer(const char *text, size_t n_bytes);
void unicode_append_older(strbuf *out, const char *text, size_t n_bytes);
/* Whether NFC is to leave this character alone, as one it does not know. */
bool unicode_is_inert(int32_t point);

/* Added tokens: a tree of bytes. Node 0 is the root. */
typedef struct added_node {
    unsigned char byte;
    int32_t id;              /* of the token that ends here, or -1 */
    uint32_t child, sibling; /* 0 = none */
} added_node;

typedef struct added_tree {
    added_node *nodes;
    size_t n_nodes, capacity;
    bool starts[256]; /* first bytes of the tokens */
} added_tree;

/* -1 in *id_before, or the id that the text already has. */
calla_status added_insert(added_tree *tree, const char *text, size_t n_bytes, int32_t id,
                          int32_t *id_before, calla_error *err);
int32_t added_find(const added_tree *tree, const char *text, size_t n_bytes);
/* The longest added token that starts at `text` and is not longer than n_bytes: its id and length,
 * or -1. */
int32_t added_match(const added_tree *tree, const char *text, size_t n_bytes, size_t *length);
void added_deinit(added_tree *tree);

/* ---- the whole ---- */

enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2, TOKEN_STOP = 4 };

struct calla_tokenizer {
    vocabulary vocabulary;
    uint8_t *flags; /* [n_flags] = n_tokens */
    size_t n_flags, flags_capacity;
    int32_t n_bpe; /* tokens of the BPE model; ids from here on are added tokens only */
    added_tree added;
    splitter splitter;
    bool normalize;    /* to NFC */
    bool whole_pieces; /* "ignore_merges": a piece that is a token is not built by merges */
};

/* Opens a tokenizer from the text of a tokenizer.json alone (also the fuzz target's entry). */
calla_status tokenizer_parse(const char *text, size_t n_bytes, const char *path,
                             calla_tokenizer **tokenizer, calla_error *err);

#endif
