/* Passwords and secrets that have no form of their own: what stands beside a telling name. */
#include "hybrid/detect/scan.h"

#include <math.h>
#include <string.h>

enum { MAX_VALUE = 256, MAX_SUFFIX = 24 };

/* How a value is given. */
typedef struct given {
    size_t start, end; /* without quotes */
    bool quoted;
    bool assigned; /* by a sign, as in programs and configuration; else in a sentence */
    bool tight;    /* name=value without spaces */
    bool colon;    /* name: value */
    bool ascii;    /* what is not ASCII ends it */
} given;

static bool starts_with(const scan *s, size_t at, const char *text)
{
    size_t n = strlen(text);
    return s->n >= n && at <= s->n - n && strncasecmp(s->text + at, text, n) == 0;
}

static size_t skip_spaces(const scan *s, size_t at, size_t most)
{
    size_t n = 0;
    while (n < most && (char_at(s, at + n) == ' ' || char_at(s, at + n) == '\t') && at + n < s->n)
        n++;
    return at + n;
}

/* Words that say "is" in a sentence. */
static const char *const verbs[] = {"is ",
                                    "is: ",
                                    "was ",
                                    "ist ",
                                    "lautet ",
                                    "lautet: ",
                                    "est ",
                                    "es ",
                                    "e ",
                                    "is now ",
                                    "was changed to ",
                                    "is set to ",
                                    "set to ",
                                    "jest ",
                                    "to ",
                                    "ist jetzt ",
                                    "= ",
                                    "luidt "};

static size_t read_verb(const scan *s, size_t at)
{
    if (!strchr("iIwWlLeEjJsStT=", char_at(s, at))) return 0; /* what they begin with */
    for (size_t k = 0; k < sizeof verbs / sizeof *verbs; k++)
        if (starts_with(s, at, verbs[k])) return skip_spaces(s, at + strlen(verbs[k]), 4);
    return 0;
}

/* Chinese and Japanese have no spaces: the value is what is ASCII. */
static size_t read_verb_without_spaces(const scan *s, size_t at, given *g)
{
    static const char *const words[] = {"是", "为", "は"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        if (starts_with(s, at, words[k])) {
            g->ascii = true;
            return skip_spaces(s, at + strlen(words[k]), 2);
        }
    return 0;
}

/* {"name": "PASSWORD", "value": "..."}, and the same in YAML: behind the name that ends at `at`. */
static size_t read_pair(const scan *s, size_t at, given *g)
{
    enum { MOST = 40 };
    size_t i = at;
    while (i < s->n && i - at < MOST && (is_space(s->text[i]) || strchr("\"',", s->text[i]))) i++;
    if (i == at || !starts_with(s, i, "value")) return 0;
    i += strlen("value");
    if (char_at(s, i) == '"' || char_at(s, i) == '\'') i++;
    i = skip_spaces(s, i, 4);
    if (char_at(s, i) != ':' && char_at(s, i) != '=') return 0;
    g->assigned = g->tight = g->colon = true;
    return skip_spaces(s, i + 1, 4);
}

/* "password for the router is ...", "clave del wifi: ...": whose it is, in a few words. */
static size_t read_owner(const scan *s, size_t at, given *g)
{
    static const char *const beginnings[] = {
        "for ", "of ",  "to ",  "del ",  "de ",   "della ", "di ",  "du ", "des ", "der ", "fur ",
        "zum ", "zur ", "per ", "pour ", "para ", "voor ",  "van ", "do ", "da ",  "dla ", "vom "};
    enum { MOST = 40 };
    bool owned = false;
    for (size_t k = 0; k < sizeof beginnings / sizeof *beginnings; k++)
        owned = owned || starts_with(s, at, beginnings[k]);
    if (!owned) return 0;
    size_t i = at;
    while (i < s->n && i - at < MOST) {
        char c = s->text[i];
        if (c == ':') {
            g->colon = true;
            return skip_spaces(s, i + 1, 4);
        }
        size_t value = c == ' ' ? read_verb(s, i + 1) : 0;
        if (value && i > at + 4) return value;
        if (!is_alnum(c) && c != ' ' && c != '-' && c != '\'' && (unsigned char)c < 0x80) return 0;
        i++;
    }
    return 0;
}

/* What stands between the name that ends at `at` and its value: where the value begins; 0 if there
 * is none. */
static size_t read_operator_at(const scan *s, size_t at, given *g)
{
    /* The name may go on ("password_prod") and be quoted or in brackets. */
    size_t i = at;
    while (i - at < MAX_SUFFIX &&
           (is_alnum(char_at(s, i)) || char_at(s, i) == '_' || char_at(s, i) == '-') && i < s->n)
        i++;
    size_t name_end = i;
    while (i - name_end < 3 && char_at(s, i) && strchr("\"'])*`", char_at(s, i))) i++;
    size_t from = skip_spaces(s, i, 12);
    char c = char_at(s, from);
    g->assigned = true;
    if (c == '=' || c == ':' || c == '>') {
        size_t end = from + 1;
        while (end - from < 3 &&
               (char_at(s, end) == '=' || char_at(s, end) == '>' || char_at(s, end) == '*'))
            end++;
        size_t value = skip_spaces(s, end, 12);
        g->tight = from == i && value == end;
        if (c == ':' && value == end && char_at(s, value) == '/') return 0;
        /* A line of its own, as after a heading. */
        bool below = c == ':' && char_at(s, value) == '\n';
        if (below) value = skip_spaces(s, value + 1, 12);
        /* A sentence's colon: "the password: hunter2". */
        g->colon = c == ':';
        g->assigned = !below && (!g->colon || g->tight || i > name_end);
        return value;
    }
    g->assigned = false;
    g->tight = false;
    size_t value = read_pair(s, name_end, g);
    if (!value) value = read_verb_without_spaces(s, i, g);
    if (value || from == i) return value;
    value = read_verb(s, from);
    return value ? value : read_owner(s, from, g);
}

/* The same, of a cue. */
static size_t read_operator(const scan *s, const cue *c, given *g)
{
    if (cue_is_of_table(c)) {
        g->assigned = g->tight = g->colon = true;
        return c->end;
    }
    return read_operator_at(s, c->end, g);
}

static bool ends_value(char c)
{
    switch (c) {
    case '"':
    case '\'':
    case '`':
    case '<':
    case '>':
    case ',':
    case ';':
    case '\0':
        return true;
    default:
        return is_space(c);
    }
}

/* *run_end is where the last unquoted value ended, in which other names may be, too: a text of
 * names alone is read once. */
static bool read_value(const scan *s, size_t at, given *g, size_t *run_end)
{
    if (at == 0 || at >= s->n) return false;
    char c = s->text[at];
    g->quoted = c == '"' || c == '\'' || c == '`';
    g->start = at + g->quoted;
    size_t i = g->start;
    if (g->quoted) {
        while (i < s->n && i - g->start <= MAX_VALUE && s->text[i] != c && s->text[i] != '\n') i++;
        if (char_at(s, i) != c) return false;
    } else {
        if (*run_end <= i) {
            *run_end = i;
            while (*run_end < s->n && !ends_value(s->text[*run_end])) ++*run_end;
        }
        i = *run_end;
        for (size_t k = g->start; g->ascii && k < i && k - g->start <= MAX_VALUE; k++)
            if ((unsigned char)s->text[k] >= 0x80) i = k;
        /* Of a query: name=value&... */
        const char *next = g->tight ? memchr(s->text + g->start, '&',
                                             i - g->start < MAX_VALUE ? i - g->start : MAX_VALUE)
                                    : NULL;
        if (next) i = (size_t)(next - s->text);
    }
    g->end = i;
    /* What ends the sentence or the brackets it stands in. */
    while (!g->quoted && g->end > g->start && strchr(".)?:]}", s->text[g->end - 1])) g->end--;
    return g->end > g->start && g->end - g->start <= MAX_VALUE;
}

/* What a value is made of. */
typedef struct texture {
    size_t n, digits, upper, lower, others;
    size_t turns; /* between digits, capital and small letters: words of programs have few */
    double bits;  /* of entropy in a character, by the counts of this value alone */
} texture;

static texture texture_of(const char *value, size_t n)
{
    texture t = {.n = n};
    unsigned counts[256] = {0};
    for (size_t i = 0; i < n; i++) {
        char c = value[i];
        counts[(unsigned char)c]++;
        if (i > 0 &&
            (is_digit(c) != is_digit(value[i - 1]) || is_upper(c) != is_upper(value[i - 1])))
            t.turns++;
        if (is_digit(c))
            t.digits++;
        else if (is_upper(c))
            t.upper++;
        else if (is_lower(c))
            t.lower++;
        else
            t.others++;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned *count = &counts[(unsigned char)value[i]];
        if (*count) t.bits -= *count / (double)n * log2(*count / (double)n);
        *count = 0;
    }
    return t;
}

/* What stands where a value would, and is none. */
static bool is_stand_in(const char *value, size_t n)
{
    static const char *const words[] = {
        "true",      "false",   "null",     "none",     "undefined",   "required", "optional",
        "string",    "str",     "text",     "password", "secret",      "token",    "redacted",
        "hidden",    "empty",   "changeme", "example",  "placeholder", "varchar",  "yourpassword",
        "bytes",     "int",     "number",   "boolean",  "nil",         "default",  "invalid",
        "incorrect", "expired", "missing",  "wrong",    "masked",      "passwort", "unset"};
    if (strchr("$<{%[(", value[0]) || (n >= 2 && value[0] == '-' && value[1] == '-')) return true;
    bool one = true;
    for (size_t i = 1; i < n; i++) one = one && value[i] == value[0];
    if (one) return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i]) == n && strncasecmp(value, words[i], n) == 0) return true;
    static const char *const beginnings[] = {
        "your_",      "your-",    "my_",     "<your", "env.",  "process.env",
        "os.environ", "getenv",   "config.", "self.", "this.", "settings.",
        "http://",    "https://", "xxx",     "***",   "..."};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncasecmp(value, beginnings[i], strlen(beginnings[i])) == 0 &&
            n >= strlen(beginnings[i]))
            return true;
    return false;
}

/* An expression of a program: a call, an element, names joined by stops or underscores. */
static bool is_code(const char *value, const texture *t, char after)
{
    size_t name = 0;
    while (name < t->n && (is_letter(value[name]) || value[name] == '_' || value[name] == '.'))
        name++;
    if (name < t->n && (value[name] == '(' || value[name] == '[')) return true;
    bool names = t->digits == 0 && t->upper + t->lower > 0;
    for (size_t i = 0; i < t->n && names; i++)
        names = is_letter(value[i]) || value[i] == '.' || value[i] == '_' || value[i] == ':';
    return names && (t->others > 0 || after == ',' || after == ')' || after == ';');
}

static bool is_password(const scan *s, const given *g)
{
    const char *value = s->text + g->start;
    size_t n = g->end - g->start;
    if (n < 4 || n > 128 || is_stand_in(value, n)) return false;
    texture t = texture_of(value, n);
    bool mixed = t.digits > 0 || t.others > 0 || (t.upper > 1 && t.lower > 0);
    /* A name of the thing itself: password="user_password". */
    for (size_t i = 0; i + 8 <= n; i++)
        if (strncasecmp(value + i, "password", 8) == 0) return false;
    if (g->quoted) return memchr(value, ' ', n) == NULL || mixed;
    if (is_code(value, &t, char_at(s, g->end))) return false;
    if (g->tight && (!g->colon || mixed)) return true;
    /* Unquoted after spaces, or in a sentence: only what no word is. */
    return (t.digits > 0 && t.digits < n) || (t.digits == n && n >= 6) ||
           (t.others > 0 && t.others < n && !memchr(value, '.', n) && !memchr(value, '-', n) &&
            !memchr(value, '_', n) && !memchr(value, '/', n)) ||
           (t.upper > 1 && t.lower > 1 && n >= 8);
}

static bool ends_with(const char *value, size_t n, const char *end)
{
    size_t length = strlen(end);
    return n > length && strncasecmp(value + n - length, end, length) == 0;
}

static bool is_secret(const scan *s, const given *g)
{
    const char *value = s->text + g->start;
    size_t n = g->end - g->start;
    if (n < 8 || is_stand_in(value, n) || memchr(value, ' ', n)) return false;
    static const char *const files[] = {".pem", ".json", ".key", ".txt", ".yml", ".yaml", ".env"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (ends_with(value, n, files[i])) return false;
    if (value[0] == '/' || value[0] == '.') return false;
    texture t = texture_of(value, n);
    if (is_code(value, &t, '\0')) return false;
    /* Drawn at random half of the neighbours differ in kind; a type's name has a few capitals. */
    if (10 * t.turns < (g->assigned || g->quoted ? 2u : 4u) * (n - 1)) return false;
    /* As much as the entropy of 12 characters drawn at random, and no word or number. */
    bool drawn = t.digits > 0 && t.upper + t.lower > 0 && t.bits * (double)n >= 28;
    bool letters = t.digits == 0 && t.upper > 2 && t.lower > 2 && n >= 16 && t.bits >= 3.5;
    return drawn || letters || (g->quoted && t.others > 0 && n >= 12 && t.bits >= 3);
}

static void find_beside(scan *s, cue_class class_)
{
    size_t done = 0, run_end = 0;
    for (size_t i = 0; i < s->cues[class_].n; i++) {
        const cue *c = &s->cues[class_].items[i];
        given g = {0};
        if (c->end < done || !read_value(s, read_operator(s, c, &g), &g, &run_end)) continue;
        bool password = class_ == CUE_PASSWORD;
        if (password ? !is_password(s, &g) : !is_secret(s, &g)) continue;
        scan_add(s, password ? DETECT_PASSWORD : DETECT_SECRET, password ? "password" : "named",
                 g.start, g.end, g.quoted || g.assigned ? 0.93 : 0.88);
        done = g.end;
    }
}

/* "PIN: 1234", "PIN is 1234", "PIN 1234". */
static void find_pins(scan *s)
{
    size_t run_end = 0;
    for (size_t i = 0; i < s->cues[CUE_PIN].n; i++) {
        const cue *c = &s->cues[CUE_PIN].items[i];
        given g = {0};
        size_t at = read_operator(s, c, &g);
        if (!at && is_digit(char_at(s, c->end + 1))) at = skip_spaces(s, c->end, 1);
        if (!read_value(s, at, &g, &run_end)) continue;
        size_t n = g.end - g.start;
        texture t = texture_of(s->text + g.start, n);
        if (t.digits == n && n >= 4 && n <= 6)
            scan_add(s, DETECT_PASSWORD, "pin", g.start, g.end, 0.9);
    }
}

/* scheme://user:password@host */
static void find_in_urls(scan *s)
{
    for (size_t i = 0; i < s->cues[CUE_URL].n; i++) {
        size_t start = s->cues[CUE_URL].items[i].end, at = start, colon = 0, end = 0;
        for (; at < s->n && at - start < MAX_VALUE; at++) {
            char c = s->text[at];
            if (is_space(c) || strchr("/\"'<>", c)) break;
            if (c == ':' && !colon) colon = at;
            if (c == '@') end = at; /* the last one: a password may hold others */
        }
        if (colon && end > colon + 1 && !is_stand_in(s->text + colon + 1, end - colon - 1))
            scan_add(s, DETECT_PASSWORD, "url", colon + 1, end, 0.97);
    }
}

/* "Authorization: Bearer TOKEN", "Basic BASE64" */
static void find_authorizations(scan *s)
{
    for (size_t i = 0; i < s->cues[CUE_AUTHORIZATION].n; i++) {
        size_t at = skip_spaces(s, s->cues[CUE_AUTHORIZATION].items[i].end, 3), end = at;
        if (at == s->cues[CUE_AUTHORIZATION].items[i].end) continue;
        while (end < s->n && end - at < 4096 &&
               (is_alnum(s->text[end]) || strchr("-._~+/=", s->text[end])) && s->text[end])
            end++;
        while (end > at && s->text[end - 1] == '.') end--;
        if (end - at < 12) continue;
        texture t = texture_of(s->text + at, end - at);
        if (t.bits >= 3 &&
            (t.digits > 0 || s->text[end - 1] == '=' || (t.upper > 2 && t.lower > 2)))
            scan_add(s, DETECT_SECRET, "authorization", at, end, 0.92);
    }
}

void find_secrets(scan *s)
{
    find_beside(s, CUE_PASSWORD);
    find_beside(s, CUE_SECRET);
    find_pins(s);
    find_in_urls(s);
    find_authorizations(s);
}
