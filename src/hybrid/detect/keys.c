/* Keys and certificates in PEM, and the tokens of services by their published forms. */
#include "hybrid/detect/base64.h"
#include "hybrid/detect/scan.h"
#include "hybrid/detect/token_forms.h"

#include <string.h>

/* ---- PEM (RFC 7468), OpenPGP's armour (RFC 9580) ---- */

enum { MAX_LABEL = 64, MAX_LINE = 1 << 16 };

static bool label_has(const char *label, size_t n, const char *part)
{
    return memmem(label, n, part, strlen(part)) != NULL;
}

/* Where the block with this body ends: after its END line, or if it has none, after the lines that
 * may be its body. */
static size_t block_end(const scan *s, size_t body, const char *label, size_t n_label)
{
    size_t whole = body; /* end of the last line without a space inside, or of a header */
    bool spaced = false, header = false;
    for (size_t i = body; i < s->n; i++) {
        char c = s->text[i];
        /* Another block, or a line that no body has. */
        if ((c == '-' && s->n - i > 11 && memcmp(s->text + i, "-----BEGIN ", 11) == 0) ||
            i - whole > MAX_LINE)
            return whole;
        if (c == '-' && s->n - i > 9 && memcmp(s->text + i, "-----END ", 9) == 0) {
            size_t end = i + 9;
            bool same = s->n - end >= n_label + 5 && memcmp(s->text + end, label, n_label) == 0;
            return same ? end + n_label + 5 : end;
        }
        if (c == '\n') {
            if (spaced && !header) return whole;
            whole = i;
            spaced = header = false;
        } else if (is_space(c)) {
            spaced = spaced || i > whole + 1;
        } else if (c == ':') {
            header = true;
        } else if (base64_value(c) < 0 && !strchr("=,\\", c)) {
            return whole;
        }
    }
    return spaced && !header ? whole : s->n;
}

static void find_pem(scan *s)
{
    size_t done = 0;
    for (size_t i = 0; i < s->cues[CUE_PEM].n; i++) {
        const cue *c = &s->cues[CUE_PEM].items[i];
        if (c->start < done) continue;
        const char *label = s->text + c->end;
        size_t left = s->n - c->end < MAX_LABEL ? s->n - c->end : MAX_LABEL;
        const char *dashes = memmem(label, left, "-----", 5);
        if (!dashes) continue;
        size_t n = (size_t)(dashes - label);
        bool key = label_has(label, n, "PRIVATE KEY");
        if (!key && !label_has(label, n, "CERTIFICATE")) continue;
        done = block_end(s, c->end + n + 5, label, n);
        const char *kind = !key                               ? "certificate"
                           : label_has(label, n, "PGP")       ? "pgp"
                           : label_has(label, n, "OPENSSH")   ? "openssh"
                           : label_has(label, n, "EC")        ? "ec"
                           : label_has(label, n, "RSA")       ? "rsa"
                           : label_has(label, n, "ENCRYPTED") ? "encrypted"
                                                              : "pkcs8";
        scan_add(s, key ? DETECT_PRIVATE_KEY : DETECT_CERTIFICATE, kind, c->start, done, 0.99);
    }
}

/* ---- tokens ---- */

static bool is_of(token_alphabet alphabet, char c)
{
    switch (alphabet) {
    case TOKEN_ALNUM:
        return is_alnum(c);
    case TOKEN_UPPER:
        return is_upper(c) || is_digit(c);
    case TOKEN_HEX:
        return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    case TOKEN_URL:
        return is_alnum(c) || c == '-' || c == '_';
    case TOKEN_DOTTED:
        return is_alnum(c) || c == '-' || c == '_' || c == '.';
    case TOKEN_BASE64:
        return is_alnum(c) || c == '+' || c == '/' || c == '=';
    case TOKEN_PATH:
        return is_alnum(c) || c == '/' || c == '-' || c == '_';
    case TOKEN_N_ALPHABETS:
        break;
    }
    return false;
}

/* A JSON web token: three parts, of which the first is a JSON object with "alg". */
static bool is_jwt(const char *token, size_t n)
{
    const char *dot = memchr(token, '.', n);
    char header[768];
    size_t length = dot ? (size_t)(dot - token) : 0;
    if (length < 12 || length > 1000 || !memchr(dot + 1, '.', n - length - 1)) return false;
    size_t decoded = base64_decode(token, length, header);
    return decoded > 8 && header[0] == '{' && header[1] == '"' && header[decoded - 1] == '}' &&
           memmem(header, decoded, "\"alg\"", 5);
}

/* "sk-" and the like begin words of other kinds: what follows must be drawn at random. Few such
 * texts, but some, have no digit; they change between small and capital letters all the time. */
static bool looks_random(const char *token, size_t n)
{
    size_t digits = 0, letters = 0, changes = 0;
    for (size_t i = 0; i < n; i++) {
        digits += is_digit(token[i]);
        letters += is_letter(token[i]);
        changes +=
            i > 0 && is_upper(token[i]) && is_letter(token[i - 1]) && !is_upper(token[i - 1]);
    }
    return letters > 0 && (digits > 0 || changes >= 3);
}

static void find_tokens(scan *s)
{
    size_t done = 0;
    size_t run_ends[TOKEN_N_ALPHABETS] = {
        0}; /* of the last run looked at, which others may be in */
    for (size_t i = 0; i < s->cues[CUE_TOKEN].n; i++) {
        const cue *c = &s->cues[CUE_TOKEN].items[i];
        const token_form *form = &token_forms[c->row];
        size_t n_prefix = c->end - c->start, n;
        if (c->start < done || memcmp(s->text + c->start, form->prefix, n_prefix) != 0) continue;
        size_t *run_end = &run_ends[form->alphabet];
        if (*run_end < c->end) {
            *run_end = c->end;
            while (*run_end < s->n && is_of(form->alphabet, s->text[*run_end])) ++*run_end;
        }
        n = *run_end - c->end;
        bool jwt = strcmp(form->kind, "jwt") == 0;
        /* A stop after it ends the sentence. */
        if (form->alphabet == TOKEN_DOTTED)
            while (n > 0 && s->text[c->end + n - 1] == '.') n--;
        if (n < form->least || n > form->most || is_alnum(char_at(s, c->end + n))) continue;
        /* A length that is always the same tells enough: few, but some of them have no digit. */
        bool exact = form->least == form->most;
        if (jwt ? !is_jwt(s->text + c->start, n_prefix + n)
                : !exact && !looks_random(s->text + c->end, n))
            continue;
        done = c->end + n;
        scan_add(s, DETECT_API_KEY, form->kind, c->start, done, 0.97);
    }
}

/* ---- tokens whose beginning is not fixed ---- */

static size_t run_of(const scan *s, size_t at, token_alphabet alphabet, size_t most)
{
    size_t n = 0;
    while (n <= most && is_of(alphabet, char_at(s, at + n))) n++;
    return n;
}

/* Telegram: the bot's number, ':', and 35 characters, the first two mostly "AA". */
static void try_telegram(scan *s, const word *w)
{
    size_t end = w->start + w->n;
    if (!word_is_number(w) || w->n < 8 || w->n > 10 || char_at(s, end) != ':') return;
    size_t n = run_of(s, end + 1, TOKEN_URL, 36);
    if (n == 35 && looks_random(s->text + end + 1, n))
        scan_add(s, DETECT_API_KEY, "telegram", w->start, end + 1 + n, 0.96);
}

/* Discord's bots: the id in base64, a time, a signature. */
static void try_discord(scan *s, const word *w)
{
    if (w->n < 18 || w->n > 28 || !strchr("MNO", s->text[w->start])) return;
    size_t first = run_of(s, w->start, TOKEN_URL, 28), at = w->start + first;
    if (first < 23 || char_at(s, at) != '.') return;
    size_t second = run_of(s, at + 1, TOKEN_URL, 7);
    if (second != 6 || char_at(s, at + 7) != '.') return;
    size_t third = run_of(s, at + 8, TOKEN_URL, 38);
    char id[24];
    size_t n = base64_decode(s->text + w->start, first < 28 ? first : 28, id);
    for (size_t i = 0; i < n; i++)
        if (!is_digit(id[i])) return;
    if (third >= 27 && third <= 38)
        scan_add(s, DETECT_API_KEY, "discord", w->start, at + 8 + third, 0.96);
}

/* Twilio's keys: SK and 32 hexadecimal digits. */
static void try_twilio(scan *s, const word *w)
{
    if (w->n == 34 && memcmp(s->text + w->start, "SK", 2) == 0 &&
        run_of(s, w->start + 2, TOKEN_HEX, 33) == 32)
        scan_add(s, DETECT_API_KEY, "twilio", w->start, w->start + w->n, 0.96);
}

void find_keys(scan *s)
{
    find_pem(s);
    find_tokens(s);
    for (size_t i = 0; i < s->n_words; i++) {
        try_telegram(s, &s->words[i]);
        try_discord(s, &s->words[i]);
        try_twilio(s, &s->words[i]);
    }
}
