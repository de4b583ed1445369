/* Postal addresses: a street's name with its number, and what follows it up to postcode and town.
 *
 *   "12 Oak Street, Apt 4, Springfield, IL 62704"     number, name, word for street
 *   "Lange Strasse 12, 10115 Berlin"                   name with the word in it, number
 *   "12 bis, rue de la Paix, 75002 Paris"              number, word, name
 *   "Calle Mayor 12, 28013 Madrid", "ul. Dluga 5/7"    word, name, number */
#include "hybrid/detect/scan.h"

#include <string.h>

enum {
    MAX_NAME = 60,  /* bytes of a street's name */
    MAX_TAIL = 90,  /* bytes from the street to its postcode */
    HOUSE_BYTES = 6 /* of a house's number */
};

static bool is_name_byte(char c)
{
    return is_alnum(c) || (unsigned char)c >= 0x80 || c == '\'' || c == '-' || c == '.';
}

static bool is_capital(char c)
{
    return is_upper(c) || (unsigned char)c >= 0x80;
}

/* The end of the word at `at`. */
static size_t word_end(const scan *s, size_t at)
{
    while (at < s->n && is_name_byte(s->text[at])) at++;
    return at;
}

/* The beginning of the word that ends at `at`, at most MAX_NAME before. */
static size_t word_start(const scan *s, size_t at)
{
    size_t start = at;
    while (start > 0 && at - start < MAX_NAME && is_name_byte(s->text[start - 1])) start--;
    return start;
}

/* "12", "12a", "12-14", "5/7", "12 bis": a house's number at `at`; its end, or 0. */
static size_t house_end(const scan *s, size_t at)
{
    size_t i = at;
    if (!is_digit(char_at(s, i)) || is_alnum(char_before(s, at))) return 0;
    while (is_digit(char_at(s, i))) i++;
    if (i - at > 5) return 0;
    if (is_letter(char_at(s, i)) && !is_alnum(char_at(s, i + 1))) i++;
    if ((char_at(s, i) == '-' || char_at(s, i) == '/') && is_digit(char_at(s, i + 1))) {
        size_t k = i + 1;
        while (is_digit(char_at(s, k)) && k - i <= 4) k++;
        if (is_letter(char_at(s, k)) && !is_alnum(char_at(s, k + 1))) k++;
        i = k;
    }
    return is_alnum(char_at(s, i)) || i - at > 2 * HOUSE_BYTES ? 0 : i;
}

/* ---- postcodes ---- */

static bool are_letters(const scan *s, size_t at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_upper(char_at(s, at + i))) return false;
    return true;
}

/* "SW1A 1AA": a district's word and "9AA". */
static bool is_uk(const scan *s, const word *w, const word *next)
{
    if (w->n < 2 || w->n > 4 || !is_upper(s->text[w->start]) || (w->has & WORD_LOWER)) return false;
    return next && next->gap == ' ' && next->n == 3 && is_digit(s->text[next->start]) &&
           are_letters(s, next->start + 1, 2);
}

/* Whether word i is (the beginning of) a postcode: its end, 0 if not; *town: a town's name follows
 * it, and where it does not this is no postcode unless *alone. */
static size_t postcode_end(const scan *s, size_t i, bool *town, bool *alone)
{
    const word *w = &s->words[i], *next = i + 1 < s->n_words ? w + 1 : NULL;
    size_t end = w->start + w->n;
    *town = true;
    *alone = false;
    if (is_uk(s, w, next)) {
        *town = false;
        *alone = true;
        return next->start + next->n;
    }
    if (!word_is_number(w)) return 0;
    bool dashed = next && next->gap == '-' && word_is_number(next);
    if (w->n == 5) {
        bool state =
            w->start >= 3 && are_letters(s, w->start - 3, 2) && s->text[w->start - 1] == ' ';
        *town = !state && !(dashed && next->n == 3);
        *alone = state || (dashed && next->n == 3);
        return dashed && (next->n == 4 || next->n == 3) ? next->start + next->n : end;
    }
    if (w->n == 2 && dashed && next->n == 3) return next->start + next->n;
    if (w->n == 4 && dashed && next->n == 3) return next->start + next->n;
    if (w->n == 3 && !w->gap && next && next->n == 2 && next->gap == ' ' && word_is_number(next))
        return next->start + next->n; /* "110 00 Praha" */
    if (w->n == 4) {
        bool letters =
            char_at(s, end) == ' ' && are_letters(s, end + 1, 2) && !is_alnum(char_at(s, end + 3));
        *alone = letters;
        return letters ? end + 3 : end;
    }
    return 0;
}

/* Up to three words of a town's name, and a province in brackets, from `at`; `at` if there are
 * none. */
static size_t town_end(const scan *s, size_t at)
{
    size_t end = at, i = at;
    for (int k = 0; k < 3; k++) {
        if (char_at(s, i) != ' ' && !(k == 0 && char_at(s, i) == ',' && char_at(s, i + 1) == ' '))
            break;
        i += char_at(s, i) == ',' ? 2 : 1;
        bool small = strncmp(s->text + i, "de ", s->n - i < 3 ? s->n - i : 3) == 0 ||
                     strncmp(s->text + i, "am ", s->n - i < 3 ? s->n - i : 3) == 0 ||
                     strncmp(s->text + i, "an ", s->n - i < 3 ? s->n - i : 3) == 0;
        if (i >= s->n || (!is_capital(s->text[i]) && !(small && k > 0))) break;
        size_t next = word_end(s, i), letters = i;
        while (letters < next && !is_digit(s->text[letters])) letters++;
        if (letters < next) break;
        if (next > i && s->text[next - 1] == '.') {
            if (!small) end = next - 1;
            break;
        }
        i = next;
        if (!small) end = i;
    }
    if (end > at && char_at(s, end) == ' ' && char_at(s, end + 1) == '(' &&
        are_letters(s, end + 2, 2) && char_at(s, end + 4) == ')')
        end += 5;
    return end;
}

static bool is_between(char c)
{
    switch (c) {
    case ' ':
    case ',':
    case '-':
    case '/':
    case '#':
    case '(':
    case ')':
    case '\'':
    case '\n':
    case '\r':
        return true;
    default:
        return is_alnum(c) || (unsigned char)c >= 0x80;
    }
}

/* Whether [from, to) holds only what stands between street and postcode; adds up its lines. */
static bool is_tail(const scan *s, size_t from, size_t to, size_t *lines)
{
    for (size_t i = from; i < to; i++) {
        char c = s->text[i];
        *lines += c == '\n';
        if (is_between(c)) continue;
        /* A stop ends an abbreviation ("Apt.") or the sentence. */
        if (c != '.' || (char_at(s, i + 1) == ' ' && i - word_start(s, i) > 5)) return false;
    }
    return *lines <= 2;
}

/* The first word with digits at or after `at`. */
static size_t word_from(const scan *s, size_t at)
{
    size_t low = 0, high = s->n_words;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->words[middle].start < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The end of the address whose street ends at `street`, and whether a postcode says that it is one.
 */
static size_t read_tail(const scan *s, size_t street, bool *confirmed)
{
    size_t checked = street, lines = 0;
    *confirmed = false;
    for (size_t i = word_from(s, street); i < s->n_words; i++) {
        const word *w = &s->words[i];
        if (w->start - street > MAX_TAIL || !is_tail(s, checked, w->start, &lines)) break;
        checked = w->start;
        bool town, alone;
        size_t end = postcode_end(s, i, &town, &alone);
        if (!end) continue;
        size_t with_town = town ? town_end(s, end) : end;
        if (with_town == end && !alone) continue;
        *confirmed = true;
        return with_town;
    }
    return street;
}

static void report(scan *s, size_t start, size_t street, bool strong)
{
    bool confirmed;
    size_t end = read_tail(s, street, &confirmed);
    bool named = scan_cue_before(s, CUE_POSTCODE, start, 40, NULL);
    if (!confirmed && !strong && !named) return;
    if (!confirmed) {
        /* A town after a comma. */
        size_t town = char_at(s, street) == ',' ? town_end(s, street) : street;
        end = town;
    }
    scan_add(s, DETECT_POSTAL_ADDRESS, "address", start, end, confirmed ? 0.95 : 0.85);
}

/* ---- number, name, word for street (English) ---- */

static void try_last(scan *s, const cue *c)
{
    size_t at = c->start, name = at;
    for (int k = 0; k < 5; k++) {
        size_t end = at;
        if (end == 0 || s->text[end - 1] != ' ') return;
        end--;
        size_t start = word_start(s, end);
        if (start == end) return;
        size_t house = house_end(s, start);
        if (k > 0 && house == end) {
            /* "In 2020 Main Street ..." may be a year. */
            bool year = end - start == 4 && (s->text[start] == '1' || s->text[start] == '2');
            bool weak = c->weak;
            size_t street = c->end + (char_at(s, c->end) == '.' && char_at(s, c->end + 1) != '\n');
            report(s, start, street, !year && !weak && is_upper(s->text[name]));
            return;
        }
        name = start;
        at = start;
    }
}

/* ---- name with the word in it, number (German, Dutch) ---- */

static void try_part(scan *s, const cue *c)
{
    size_t end = c->end, start = word_start(s, c->start);
    if (char_at(s, end) == '.') end++;
    if (char_at(s, end) != ' ') return;
    size_t house = house_end(s, end + 1);
    if (!house || !is_capital(s->text[start])) return;
    /* "Neue Schoenhauser Strasse": names before it are part of it. */
    for (int k = 0; k < 3 && start >= 3 && s->text[start - 1] == ' '; k++) {
        size_t before = word_start(s, start - 1);
        if (before + 1 >= start || !is_capital(s->text[before]) || s->text[start - 2] == '.') break;
        if (start == c->start || k > 0)
            start = before;
        else
            break;
    }
    bool weak = c->weak;
    report(s, start, house, !weak);
}

/* ---- word for street first (Romance languages, Polish) ---- */

/* The house's number before the word: "12 bis, rue". Its start, or `at`. */
static size_t house_before(const scan *s, size_t at)
{
    size_t end = at;
    while (end > 0 && (s->text[end - 1] == ' ' || s->text[end - 1] == ',')) end--;
    size_t start = word_start(s, end);
    if (start > 0 && end - start == 3 &&
        (strncasecmp(s->text + start, "bis", 3) == 0 ||
         strncasecmp(s->text + start, "ter", 3) == 0)) {
        end = start - 1;
        start = word_start(s, end);
    }
    char before = char_before(s, start);
    if (before != ' ' && before != '\n' && before != '"' && before != '(' && before != ',')
        return at;
    return end > start && house_end(s, start) == end ? start : at;
}

/* "Calle de Alcala, n. 45, 3 B": the end of the first house's number after the name; 0 if there is
 * none on the line. */
static size_t house_after(const scan *s, size_t at, size_t most_small)
{
    size_t small = 0; /* letters of the present word, if it is a small one */
    for (size_t i = at; i < s->n && i - at < MAX_NAME; i++) {
        char c = s->text[i];
        if (c == '\n' || c == ';' || c == ':' || c == '"') return 0;
        /* Words of a name are capital, but for "de la" and the like. */
        if (is_lower(c) && !is_name_byte(char_before(s, i)))
            small = 1;
        else if (small && is_name_byte(c))
            small++;
        else
            small = 0;
        if (small > most_small) return 0;
        if (!is_digit(c) || is_alnum(char_before(s, i))) continue;
        size_t end = house_end(s, i);
        /* "rue du 8 mai 1945", "3 Maja 12": a number in the name is followed by its word. */
        if (end && char_at(s, end) == ' ' && is_letter(char_at(s, end + 1)) &&
            is_letter(char_at(s, end + 2)) && is_digit(char_at(s, word_end(s, end + 1) + 1)))
            continue;
        return end;
    }
    return 0;
}

static void try_first(scan *s, const cue *c)
{
    size_t after = c->end;
    if (char_at(s, after) == '.') after++;
    while (char_at(s, after) == ' ') after++;
    if (after >= s->n || !is_name_byte(s->text[after])) return;
    size_t house = house_before(s, c->start);
    if (house < c->start) {
        /* The name goes on to a comma or the line's end; a postcode may stop it. */
        size_t end = after, words = 0;
        while (end < s->n && end - after < MAX_NAME && words < 7) {
            size_t next = word_end(s, end);
            if (next == end || is_digit(s->text[end])) break;
            words++;
            end = next;
            if (char_at(s, end) != ' ' || s->text[end - 1] == '.') break;
            if (!is_name_byte(char_at(s, end + 1)) || is_digit(char_at(s, end + 1))) break;
            end++;
        }
        while (end > after && (s->text[end - 1] == '.' || s->text[end - 1] == ' ')) end--;
        report(s, house, end, is_capital(s->text[after]) || is_lower(s->text[c->start]));
        return;
    }
    bool weak = c->weak;
    if (weak && is_digit(s->text[after])) return;
    size_t end = house_after(s, after, weak ? 3 : 5);
    if (!end) return;
    /* A name begins with a capital, after "de la" and the like. */
    size_t name = after;
    for (int k = 0; k < 3 && is_lower(char_at(s, name)); k++) {
        name = word_end(s, name);
        if (char_at(s, name) == ' ') name++;
    }
    report(s, c->start, end, !weak && is_capital(char_at(s, name)));
}

/* ---- Chinese and Japanese ---- */

/* Bytes of UTF-8 that a Chinese or Japanese address is written in, ASCII letters and digits. */
static bool is_of_cjk_place(const scan *s, size_t at)
{
    unsigned char c = (unsigned char)s->text[at];
    return is_alnum((char)c) || c == '-' || c == ' ' || (c >= 0x80 && c <= 0xBF) ||
           (c >= 0xE3 && c <= 0xED);
}

/* Behind a word for address: what goes on without a sign that ends it, if it has a number. */
static void try_cjk(scan *s, const cue *c)
{
    enum { MOST = 150 };
    static const char *const ends[] = {"。", "、", "です", "，", "；"};
    static const char *const between[] = {":", "は", "是", "为", " "};
    size_t at = c->end;
    for (size_t k = 0; k < sizeof between / sizeof *between; k++) {
        size_t n = strlen(between[k]);
        if (s->n - at >= n && memcmp(s->text + at, between[k], n) == 0) at += n;
    }
    size_t end = at, digits = 0;
    while (end < s->n && end - at < MOST && is_of_cjk_place(s, end)) {
        bool over = false;
        for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
            size_t n = strlen(ends[k]);
            over = over || (s->n - end >= n && memcmp(s->text + end, ends[k], n) == 0);
        }
        if (over) break;
        digits += is_digit(s->text[end]);
        end++;
    }
    while (end > at && s->text[end - 1] == ' ') end--;
    if (digits > 0 && end - at >= 9) scan_add(s, DETECT_POSTAL_ADDRESS, "address", at, end, 0.88);
}

void find_addresses(scan *s)
{
    size_t done = 0;
    for (size_t i = 0; i < s->cues[CUE_CJK_PLACE].n; i++) {
        if (s->cues[CUE_CJK_PLACE].items[i].end < done) continue;
        done = s->cues[CUE_CJK_PLACE].items[i].end + 150;
        try_cjk(s, &s->cues[CUE_CJK_PLACE].items[i]);
    }
    for (size_t i = 0; i < s->cues[CUE_STREET_LAST].n; i++)
        try_last(s, &s->cues[CUE_STREET_LAST].items[i]);
    for (size_t i = 0; i < s->cues[CUE_STREET_PART].n; i++)
        try_part(s, &s->cues[CUE_STREET_PART].items[i]);
    for (size_t i = 0; i < s->cues[CUE_STREET_FIRST].n; i++)
        try_first(s, &s->cues[CUE_STREET_FIRST].items[i]);
}
