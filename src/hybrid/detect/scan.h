/* What the families of detectors share: one scan's folded text, its words with digits, the cues
 * found in it, and the list of what they find. Offsets are of the folded text. */
#ifndef CALLA_HYBRID_SCAN_H
#define CALLA_HYBRID_SCAN_H

#include "hybrid/detect/cues.h"
#include "hybrid/detect/detect.h"

#include <stdint.h>

/* What a word is made of. */
enum { WORD_DIGIT = 1, WORD_UPPER = 2, WORD_LOWER = 4 };

/* A longest run of ASCII letters and digits that has a digit. */
typedef struct word {
    uint32_t start, n; /* text[start, start + n) */
    uint8_t has;       /* WORD_... */
    /* The one byte between the word before and this. Where there are more: '\n' or ' ' if it is
     * only a line's end or some spaces, with marks of quoting and formatting; '-' with spaces
     * around it; else '\0'. */
    char gap;
} word;

typedef struct candidate {
    uint32_t start, end;
    detect_category category;
    const char *kind;
    float confidence;
    bool encoded;
} candidate;

typedef struct scan {
    const char *text; /* [n] */
    size_t n;
    word *words; /* [n_words] */
    size_t n_words, words_capacity;
    cue_list cues[N_CUES];
    candidate *found; /* [n_found] */
    size_t n_found, found_capacity;
    bool failed; /* memory ran out */
} scan;

void scan_find_words(scan *s);
/* Adds cues for the cells of tables (cue_is_of_table). After all others. */
void scan_name_columns(scan *s);
void scan_add(scan *s, detect_category category, const char *kind, size_t start, size_t end,
              double confidence);

/* Whether a cue ends in the `window` bytes before `at`; its index to *index if that is not NULL
 * (the last one). */
bool scan_cue_before(const scan *s, cue_class class_, size_t at, size_t window, size_t *index);
/* Whether a cue ends in [from, to). */
bool scan_cue_between(const scan *s, cue_class class_, size_t from, size_t to);
/* Whether a cue begins in the `window` bytes from `at`, in the same sentence. */
bool scan_cue_after(const scan *s, cue_class class_, size_t at, size_t window);

/* ---- characters, in the C locale ---- */

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static inline bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}
static inline bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}
static inline bool is_letter(char c)
{
    return is_upper((char)(c & ~0x20));
}
static inline bool is_alnum(char c)
{
    return is_digit(c) || is_letter(c);
}
static inline char to_upper(char c)
{
    return is_lower(c) ? (char)(c - 'a' + 'A') : c;
}
static inline bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}
static inline char char_before(const scan *s, size_t at)
{
    return at > 0 ? s->text[at - 1] : '\n';
}
static inline char char_at(const scan *s, size_t at)
{
    return at < s->n ? s->text[at] : '\n';
}
static inline bool word_is_number(const word *w)
{
    return w->has == WORD_DIGIT;
}

/* ---- the families ---- */

void find_cards(scan *s);
void find_bank(scan *s);
void find_national_ids(scan *s);
void find_documents(scan *s);
void find_emails(scan *s);
void find_phones(scan *s);
void find_network(scan *s);
void find_addresses(scan *s);
void find_births(scan *s);
void find_keys(scan *s);
void find_secrets(scan *s);
void find_arguments(scan *s);
void find_medical(scan *s);
void find_financial(scan *s);

#endif
