/* Values of the corpus: each as its format is defined, check digits included. */
#include "corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EN, DE, FR, ES, IT, PT, NL, PL };

static int digit(corpus_draws *d)
{
    return (int)corpus_draw(d, 10);
}

/* n digits, the first not 0. */
static void draw_digits(corpus_draws *d, char *out, int n)
{
    for (int i = 0; i < n; i++) out[i] = (char)('0' + (i ? digit(d) : 1 + (int)corpus_draw(d, 9)));
    out[n] = '\0';
}

static void draw_of(corpus_draws *d, const char *alphabet, int n, strbuf *out)
{
    size_t length = strlen(alphabet);
    for (int i = 0; i < n; i++) strbuf_putc(out, alphabet[corpus_draw(d, (uint32_t)length)]);
}

static const char alnum[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
static const char upper[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
static const char hexadecimal[] = "0123456789abcdef";
static const char decimal[] = "0123456789";

/* Digits in groups of these sizes with this between. */
static void put_grouped(const char *digits, const char *sizes, const char *between, strbuf *out)
{
    for (const char *size = sizes; *size; size++) {
        if (size != sizes) strbuf_puts(out, between);
        strbuf_append(out, digits, (size_t)(*size - '0'));
        digits += *size - '0';
    }
}

/* ---- cards ---- */

/* Luhn: from the right, every second digit counts twice, its digits added. */
static char luhn_digit(const char *digits, int n)
{
    int sum = 0;
    for (int i = n - 1, twice = 1; i >= 0; i--, twice = !twice) {
        int v = digits[i] - '0';
        if (twice) v *= 2;
        sum += v / 10 + v % 10;
    }
    return (char)('0' + (10 - sum % 10) % 10);
}

static void put_card(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const struct {
        const char *prefix, *sizes;
    } kinds[] = {{"4", "4444"},    {"4", "4444"},    {"51", "4444"}, {"53", "4444"},
                 {"55", "4444"},   {"2450", "4444"}, {"34", "465"},  {"37", "465"},
                 {"6011", "4444"}, {"65", "4444"},   {"36", "464"},  {"3541", "4444"},
                 {"62", "4444"}};
    size_t k = corpus_draw(d, sizeof kinds / sizeof *kinds);
    char digits[24];
    int n = kinds[k].sizes[1] == '4' ? 16 : kinds[k].sizes[2] == '5' ? 15 : 14;
    draw_digits(d, digits, n);
    memcpy(digits, kinds[k].prefix, strlen(kinds[k].prefix));
    digits[n - 1] = luhn_digit(digits, n - 1);
    switch (corpus_draw(d, 12)) {
    case 0:
        put_grouped(digits, kinds[k].sizes, "\xc2\xa0", out);
        break;
    case 1:
        /* Full-width digits. */
        for (int i = 0; i < n; i++) strbuf_printf(out, "\xef\xbc%c", 0x90 + (digits[i] - '0'));
        break;
    case 2:
        put_grouped(digits, kinds[k].sizes, "\xe2\x80\x8b", out);
        break;
    case 3:
    case 4:
    case 5:
        strbuf_append(out, digits, (size_t)n);
        break;
    case 6:
    case 7:
        put_grouped(digits, kinds[k].sizes, "-", out);
        break;
    default:
        put_grouped(digits, kinds[k].sizes, " ", out);
    }
}

/* ---- IBAN ---- */

/* The remainder of a long number written in digits and letters (A is 10). */
static int remainder_97(const char *text)
{
    int rest = 0;
    for (; *text; text++) {
        if (*text >= 'A')
            rest = (rest * 100 + (*text - 'A' + 10)) % 97;
        else
            rest = (rest * 10 + (*text - '0')) % 97;
    }
    return rest;
}

static void put_iban(corpus_draws *d, int language, strbuf *out)
{
    static const struct {
        const char *country, *form; /* n digits, a letters, c both */
    } kinds[] = {
        {"GB", "aaaannnnnnnnnnnnnn"},      {"DE", "nnnnnnnnnnnnnnnnnn"},
        {"FR", "nnnnnnnnnncccccccccccnn"}, {"ES", "nnnnnnnnnnnnnnnnnnnn"},
        {"IT", "annnnnnnnnncccccccccccc"}, {"PT", "nnnnnnnnnnnnnnnnnnnnn"},
        {"NL", "aaaannnnnnnnnn"},          {"PL", "nnnnnnnnnnnnnnnnnnnnnnnn"},
        {"CH", "nnnnncccccccccccc"},       {"BE", "nnnnnnnnnnnn"},
        {"AT", "nnnnnnnnnnnnnnnn"},        {"IE", "aaaannnnnnnnnnnnnn"},
    };
    size_t k = corpus_draw(d, 3) ? (size_t)language : corpus_draw(d, sizeof kinds / sizeof *kinds);
    strbuf number = {0};
    for (const char *f = kinds[k].form; *f; f++)
        draw_of(d,
                *f == 'a'                        ? upper
                : *f == 'n' || corpus_draw(d, 4) ? decimal
                                                 : upper,
                1, &number);
    char turned[64], iban[64];
    snprintf(turned, sizeof turned, "%s%s00", number.data, kinds[k].country);
    snprintf(iban, sizeof iban, "%s%02d%s", kinds[k].country, 98 - remainder_97(turned),
             number.data);
    strbuf_free(&number);
    bool spaced = corpus_draw(d, 3) > 0;
    for (size_t i = 0; iban[i]; i++) {
        if (spaced && i > 0 && i % 4 == 0) strbuf_putc(out, ' ');
        strbuf_putc(out, iban[i]);
    }
}

/* ---- national ids ---- */

static void put_nhs(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char t[12];
    int check;
    do {
        draw_digits(d, t, 9);
        int sum = 0;
        for (int i = 0; i < 9; i++) sum += (t[i] - '0') * (10 - i);
        check = (11 - sum % 11) % 11;
    } while (check == 10);
    t[9] = (char)('0' + check);
    put_grouped(t, "334", corpus_draw(d, 2) ? " " : "", out);
}

/* Aadhaar: Verhoeff's check digit, by the group's tables. */
static void put_aadhaar(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char *const multiply[] = {"0123456789", "1234067895", "2340178956", "3401289567",
                                           "4012395678", "5987604321", "6598710432", "7659821043",
                                           "8765932104", "9876543210"};
    static const char *const permute[] = {"0123456789", "1576283094", "5803796142", "8916043527",
                                          "9453126870", "4286573901", "2793806415", "7046913258"};
    char t[14];
    draw_digits(d, t, 11);
    if (t[0] == '1') t[0] = '7';
    int c = 0;
    for (int i = 0; i < 11; i++) c = multiply[c][permute[(i + 1) % 8][t[10 - i] - '0'] - '0'] - '0';
    for (char check = '0'; check <= '9'; check++)
        if (multiply[c][check - '0'] == '0') t[11] = check;
    put_grouped(t, "444", corpus_draw(d, 3) ? " " : "", out);
}

static void put_steuer_id(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    /* Ten digits of which one is there twice and one is missing. */
    char t[12], order[] = "0123456789";
    do {
        for (int i = 9; i > 0; i--) {
            int k = (int)corpus_draw(d, (uint32_t)i + 1);
            char c = order[i];
            order[i] = order[k], order[k] = c;
        }
        memcpy(t, order, 10);
        t[1 + corpus_draw(d, 9)] = t[0];
    } while (t[0] == '0');
    int product = 10;
    for (int i = 0; i < 10; i++) {
        int sum = (t[i] - '0' + product) % 10;
        product = (sum == 0 ? 10 : sum) * 2 % 11;
    }
    int check = 11 - product;
    t[10] = (char)('0' + (check == 10 ? 0 : check));
    if (corpus_draw(d, 2))
        put_grouped(t, "2333", " ", out);
    else
        strbuf_append(out, t, 11);
}

static void put_nir(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char t[20];
    snprintf(t, sizeof t, "%u%02u%02u%02u%03u%03u", 1 + (unsigned)corpus_draw(d, 2),
             (unsigned)corpus_draw(d, 100), 1 + (unsigned)corpus_draw(d, 12),
             1 + (unsigned)corpus_draw(d, 95), 1 + (unsigned)corpus_draw(d, 600),
             1 + (unsigned)corpus_draw(d, 900));
    int rest = remainder_97(t);
    char key[4];
    snprintf(key, sizeof key, "%02d", 97 - rest);
    strcat(t, key);
    if (corpus_draw(d, 2))
        put_grouped(t, "1222332", " ", out);
    else
        strbuf_append(out, t, 15);
}

static void put_dni(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char t[12];
    bool foreigner = corpus_draw(d, 4) == 0;
    draw_digits(d, t, 8);
    if (foreigner) t[0] = (char)('0' + corpus_draw(d, 3));
    char letter = "TRWAGMYFPDXBNJZSQVHLCKE"[atoi(t) % 23];
    if (foreigner)
        strbuf_printf(out, "%c%.7s%c", 'X' + (t[0] - '0'), t + 1, letter);
    else if (corpus_draw(d, 4) == 0)
        strbuf_printf(out, "%.2s.%.3s.%.3s-%c", t, t + 2, t + 5, letter);
    else
        strbuf_printf(out, "%s%s%c", t, corpus_draw(d, 3) ? "" : "-", letter);
}

static void put_codice_fiscale(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char consonants[] = "BCDFGLMNPRSTVZ";
    /* Values of characters at odd places, digits and then letters. */
    static const int odd[] = {1,  0,  5, 7, 9, 13, 15, 17, 19, 21, 2,  4,  18,
                              20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23};
    strbuf t = {0};
    draw_of(d, consonants, 6, &t);
    strbuf_printf(&t, "%02u%c%02u%c%03u", (unsigned)corpus_draw(d, 100),
                  "ABCDEHLMPRST"[corpus_draw(d, 12)],
                  1 + (unsigned)corpus_draw(d, 28) + 40 * (unsigned)corpus_draw(d, 2),
                  "ABCDEFGHILZ"[corpus_draw(d, 11)], 1 + (unsigned)corpus_draw(d, 999));
    int sum = 0;
    for (int i = 0; i < 15; i++) {
        int v = t.data[i] >= 'A' ? t.data[i] - 'A' : t.data[i] - '0';
        sum += i % 2 == 0 ? odd[v] : v;
    }
    strbuf_putc(&t, (char)('A' + sum % 26));
    strbuf_append(out, t.data, t.n);
    strbuf_free(&t);
}

static void put_cpf(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char t[12];
    draw_digits(d, t, 9);
    for (int n = 9; n < 11; n++) {
        int sum = 0;
        for (int i = 0; i < n; i++) sum += (t[i] - '0') * (n + 1 - i);
        t[n] = (char)('0' + (sum % 11 < 2 ? 0 : 11 - sum % 11));
    }
    if (corpus_draw(d, 3))
        strbuf_printf(out, "%.3s.%.3s.%.3s-%.2s", t, t + 3, t + 6, t + 9);
    else
        strbuf_append(out, t, 11);
}

static void put_bsn(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char t[12];
    int rest;
    do {
        draw_digits(d, t, 8);
        rest = 0;
        for (int i = 0; i < 8; i++) rest += (t[i] - '0') * (9 - i);
        rest %= 11;
    } while (rest == 10);
    t[8] = (char)('0' + rest);
    strbuf_append(out, t, 9);
}

static void put_pesel(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const int weights[] = {1, 3, 7, 9, 1, 3, 7, 9, 1, 3};
    char t[16];
    unsigned century = (unsigned)corpus_draw(d, 2);
    snprintf(t, sizeof t, "%02u%02u%02u%04u",
             century ? (unsigned)corpus_draw(d, 25) : 30 + (unsigned)corpus_draw(d, 70),
             1 + (unsigned)corpus_draw(d, 12) + 20 * century, 1 + (unsigned)corpus_draw(d, 28),
             (unsigned)corpus_draw(d, 10000));
    int sum = 0;
    for (int i = 0; i < 10; i++) sum += (t[i] - '0') * weights[i];
    strbuf_printf(out, "%.10s%d", t, (10 - sum % 10) % 10);
}

static void put_ssn(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    unsigned area;
    do area = 1 + (unsigned)corpus_draw(d, 899);
    while (area == 666);
    strbuf_printf(out, "%03u-%02u-%04u", area, 1 + (unsigned)corpus_draw(d, 99),
                  1 + (unsigned)corpus_draw(d, 9999));
}

static void put_id(corpus_draws *d, int language, strbuf *out)
{
    switch (language) {
    case EN:
        put_nhs(d, language, out);
        break;
    case DE:
        put_steuer_id(d, language, out);
        break;
    case FR:
        put_nir(d, language, out);
        break;
    case ES:
        put_dni(d, language, out);
        break;
    case IT:
        put_codice_fiscale(d, language, out);
        break;
    case PT:
        put_cpf(d, language, out);
        break;
    case NL:
        put_bsn(d, language, out);
        break;
    default:
        put_pesel(d, language, out);
    }
}

/* ---- accounts ---- */

static void put_routing(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    /* Federal Reserve districts 01 ... 12; 3 7 1 weights sum to a multiple of ten. */
    static const int weights[] = {3, 7, 1, 3, 7, 1, 3, 7};
    char t[12];
    snprintf(t, sizeof t, "%02u%06u", 1 + (unsigned)corpus_draw(d, 12),
             (unsigned)corpus_draw(d, 1000000));
    int sum = 0;
    for (int i = 0; i < 8; i++) sum += (t[i] - '0') * weights[i];
    strbuf_printf(out, "%s%d", t, (10 - sum % 10) % 10);
}

static void put_bic(corpus_draws *d, int language, strbuf *out)
{
    static const char *const countries[] = {"GB", "DE", "FR", "ES", "IT", "PT", "NL", "PL"};
    draw_of(d, upper, 4, out);
    strbuf_puts(out, countries[language]);
    strbuf_puts(out, corpus_draw(d, 2) ? "2L" : "FF");
    if (corpus_draw(d, 2)) strbuf_puts(out, "XXX");
}

static void put_amount(corpus_draws *d, int language, strbuf *out)
{
    unsigned thousands = 2 + (unsigned)corpus_draw(d, 120),
             rest = (unsigned)corpus_draw(d, 10) * 100;
    switch (language) {
    case EN:
        strbuf_printf(out, corpus_draw(d, 2) ? "$%u,%03u" : "\xc2\xa3%u,%03u", thousands, rest);
        break;
    case DE:
    case NL:
        strbuf_printf(out, corpus_draw(d, 2) ? "%u.%03u Euro" : "%u.%03u \xe2\x82\xac", thousands,
                      rest);
        break;
    case FR:
        strbuf_printf(out, "%u %03u euros", thousands, rest);
        break;
    case ES:
    case IT:
        strbuf_printf(out, "%u.%03u euro%s", thousands, rest, language == ES ? "s" : "");
        break;
    case PT:
        strbuf_printf(out, "R$ %u.%03u", thousands, rest);
        break;
    default:
        strbuf_printf(out, "%u %03u z\xc5\x82", thousands, rest);
    }
}

/* ---- keys and secrets ---- */

static void put_base64_lines(corpus_draws *d, int lines, strbuf *out)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < lines; i++) {
        draw_of(d, alphabet, i + 1 < lines ? 64 : 43, out);
        strbuf_puts(out, i + 1 < lines ? "\n" : "=\n");
    }
}

static void put_block(corpus_draws *d, bool certificate, strbuf *out)
{
    static const char *const keys[] = {"PRIVATE KEY",           "RSA PRIVATE KEY",
                                       "EC PRIVATE KEY",        "OPENSSH PRIVATE KEY",
                                       "PGP PRIVATE KEY BLOCK", "ENCRYPTED PRIVATE KEY"};
    const char *label = certificate ? "CERTIFICATE" : CORPUS_PICK(d, keys);
    strbuf_printf(out, "-----BEGIN %s-----\n", label);
    if (strncmp(label, "PGP", 3) == 0) strbuf_puts(out, "\n");
    put_base64_lines(d, 4 + (int)corpus_draw(d, 10), out);
    strbuf_printf(out, "-----END %s-----", label);
}

static void put_token(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    switch (corpus_draw(d, 16)) {
    case 0:
        strbuf_puts(out, "AKIA"), draw_of(d, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16, out);
        break;
    case 1:
        strbuf_puts(out, "ghp_"), draw_of(d, alnum, 36, out);
        break;
    case 2:
        strbuf_puts(out, "glpat-"), draw_of(d, alnum, 20, out);
        break;
    case 3:
        strbuf_puts(out, "xoxb-"), draw_of(d, decimal, 12, out), strbuf_putc(out, '-');
        draw_of(d, decimal, 12, out), strbuf_putc(out, '-'), draw_of(d, alnum, 24, out);
        break;
    case 4:
        strbuf_puts(out, "sk_live_"), draw_of(d, alnum, 24, out);
        break;
    case 5:
        strbuf_puts(out, "AIza"), draw_of(d, alnum, 35, out);
        break;
    case 6:
        strbuf_puts(out, "sk-proj-"), draw_of(d, alnum, 48, out);
        break;
    case 7:
        strbuf_puts(out, "sk-ant-api03-"), draw_of(d, alnum, 93, out);
        break;
    case 8:
        strbuf_puts(out, "hf_"), draw_of(d, alnum, 34, out);
        break;
    case 9:
        strbuf_puts(out, "npm_"), draw_of(d, alnum, 36, out);
        break;
    case 10:
        strbuf_puts(out, "pypi-AgEIcHlwaS5vcmc"), draw_of(d, alnum, 120, out);
        break;
    case 11:
        strbuf_puts(out, "SG."), draw_of(d, alnum, 22, out), strbuf_putc(out, '.');
        draw_of(d, alnum, 43, out);
        break;
    case 12:
        draw_of(d, "123456789", 9, out), strbuf_puts(out, ":AA"), draw_of(d, alnum, 33, out);
        break;
    case 13:
        strbuf_puts(out, "SK"), draw_of(d, hexadecimal, 32, out);
        break;
    case 14:
        strbuf_puts(out, "github_pat_"), draw_of(d, alnum, 22, out), strbuf_putc(out, '_'),
            draw_of(d, alnum, 59, out);
        break;
    default:
        strbuf_puts(out, "dop_v1_"), draw_of(d, hexadecimal, 64, out);
    }
}

static void encode_base64(const char *text, size_t n, bool pad, strbuf *out)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned b[3] = {(unsigned char)text[i], i + 1 < n ? (unsigned char)text[i + 1] : 0,
                         i + 2 < n ? (unsigned char)text[i + 2] : 0};
        unsigned bits = b[0] << 16 | b[1] << 8 | b[2];
        for (unsigned k = 0; k < 4; k++) {
            if (i + k <= n)
                strbuf_putc(out, alphabet[bits >> (18 - 6 * k) & 63]);
            else if (pad)
                strbuf_putc(out, '=');
        }
    }
}

static void put_jwt(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char header[] = "{\"alg\":\"HS256\",\"typ\":\"JWT\"}";
    char payload[80];
    snprintf(payload, sizeof payload, "{\"sub\":\"%u\",\"iat\":%u}",
             (unsigned)corpus_draw(d, 1u << 30), 1700000000u + (unsigned)corpus_draw(d, 1u << 25));
    encode_base64(header, strlen(header), false, out);
    strbuf_putc(out, '.');
    encode_base64(payload, strlen(payload), false, out);
    strbuf_putc(out, '.');
    draw_of(d, alnum, 43, out);
}

static void put_secret(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    switch (corpus_draw(d, 4)) {
    case 0:
        draw_of(d, hexadecimal, 32, out);
        break;
    case 1:
        draw_of(d, alnum, 40, out);
        break;
    case 2:
        draw_of(d, hexadecimal, 64, out);
        break;
    default:
        draw_of(d, alnum, 24, out);
    }
}

static void put_password(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char *const words[] = {"Sommer", "winter", "Dragon",   "azerty",
                                        "Lucia",  "roma",   "Porto",    "fiets",
                                        "kotek",  "Monkey", "sunshine", "Bayern"};
    static const char signs[] = "!#%*+?";
    if (corpus_draw(d, 3) == 0) {
        draw_of(d, alnum, 6, out);
        draw_of(d, signs, 1, out);
        draw_of(d, decimal, 3, out);
        draw_of(d, alnum, 4, out);
    } else {
        strbuf_puts(out, CORPUS_PICK(d, words));
        strbuf_printf(out, "%u", 10 + (unsigned)corpus_draw(d, 2015));
        if (corpus_draw(d, 2)) draw_of(d, "!#*+", 1, out);
    }
}

/* ---- network ---- */

static void put_ip(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const unsigned firsts[] = {10, 172, 192, 85, 91, 203, 146, 51, 78, 185};
    unsigned first = CORPUS_PICK(d, firsts);
    unsigned second = first == 172   ? 16 + (unsigned)corpus_draw(d, 16)
                      : first == 192 ? 168
                                     : (unsigned)corpus_draw(d, 256);
    strbuf_printf(out, "%u.%u.%u.%u", first, second, (unsigned)corpus_draw(d, 256),
                  1 + (unsigned)corpus_draw(d, 254));
}

static void put_ipv6(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char *const prefixes[] = {"2001:db8", "2a02:8109", "fe80", "2606:4700",
                                           "fd12:3456"};
    strbuf_puts(out, CORPUS_PICK(d, prefixes));
    strbuf_puts(out, "::");
    for (int i = 0; i < 3; i++)
        strbuf_printf(out, i ? ":%x" : "%x", 1 + (unsigned)corpus_draw(d, 65535));
}

static void put_mac(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    const char *between = corpus_draw(d, 4) ? ":" : "-";
    bool big = corpus_draw(d, 2);
    for (int i = 0; i < 6; i++)
        strbuf_printf(out, big ? "%s%02X" : "%s%02x", i ? between : "",
                      1 + (unsigned)corpus_draw(d, 255));
}

/* ---- documents and records ---- */

static void put_passport(corpus_draws *d, int language, strbuf *out)
{
    static const char *const forms[] = {"nnnnnnnnn", "Cnnnnnnnn", "nnaannnnn", "aaannnnnn",
                                        "aannnnnnn", "aannnnnn",  "aannnnnnn", "aannnnnnn"};
    for (const char *f = forms[language]; *f; f++)
        draw_of(d, *f == 'n' ? decimal : *f == 'C' ? "CFGHJK" : upper, 1, out);
}

static void put_licence(corpus_draws *d, int language, strbuf *out)
{
    static const char *const forms[] = {"annnnnnn",   "annnanananan", "nnaannnnnn", "nnnnnnnna",
                                        "aannnnnnna", "nnnnnnnnnnn",  "nnnnnnnnnn", "nnnnnnnnnnnn"};
    for (const char *f = forms[language]; *f; f++) draw_of(d, *f == 'n' ? decimal : upper, 1, out);
}

static void put_pressure(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    strbuf_printf(out, "%u/%u", 110 + (unsigned)corpus_draw(d, 70),
                  65 + (unsigned)corpus_draw(d, 40));
}

static void put_dose(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char *const medicines[] = {
        "Metformin", "Lisinopril", "Atorvastatin", "Sertraline",  "Ibuprofen",
        "Omeprazol", "Ramipril",   "Amoxicillin",  "Prednisolon", "Tramadol"};
    static const unsigned doses[] = {5, 10, 20, 25, 40, 50, 100, 400, 500, 850};
    strbuf_printf(out, "%s %u%smg", CORPUS_PICK(d, medicines), CORPUS_PICK(d, doses),
                  corpus_draw(d, 3) ? " " : "");
}

static void put_icd(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    static const char *const codes[] = {"E11.9", "I10",   "F32.1",   "J45.909", "M54.5", "C50.911",
                                        "K21.0", "N18.3", "G40.209", "F41.1",   "B20",   "Z79.4"};
    strbuf_puts(out, CORPUS_PICK(d, codes));
}

static void put_diagnosis(corpus_draws *d, int language, strbuf *out)
{
    static const char *const names[][6] = {
        {"type 2 diabetes", "multiple sclerosis", "bipolar disorder", "HIV",
         "stage II breast cancer", "epilepsy"},
        {"Typ-2-Diabetes", "Multipler Sklerose", "einer Depression", "Epilepsie", "Brustkrebs",
         "Hepatitis C"},
        {"diab\xc3\xa8te de type 2", "scl\xc3\xa9rose en plaques", "d\xc3\xa9pression",
         "\xc3\xa9pilepsie", "cancer du sein", "h\xc3\xa9patite C"},
        {"diabetes tipo 2", "esclerosis m\xc3\xbaltiple", "depresi\xc3\xb3n mayor", "epilepsia",
         "c\xc3\xa1ncer de mama", "hepatitis C"},
        {"diabete di tipo 2", "sclerosi multipla", "depressione", "epilessia", "tumore al seno",
         "epatite C"},
        {"diabetes tipo 2", "esclerose m\xc3\xbaltipla", "depress\xc3\xa3o", "epilepsia",
         "c\xc3\xa2ncer de mama", "hepatite C"},
        {"diabetes type 2", "multiple sclerose", "een depressie", "epilepsie", "borstkanker",
         "hepatitis C"},
        {"cukrzyc\xc4\x99 typu 2", "stwardnienie rozsiane", "depresj\xc4\x99", "padaczk\xc4\x99",
         "raka piersi", "zapalenie w\xc4\x85troby"}};
    strbuf_puts(out, names[language][corpus_draw(d, 6)]);
}

/* A record's number: letters before it or not. */
static void put_record(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    if (corpus_draw(d, 3) == 0) {
        draw_of(d, upper, 2, out);
        strbuf_putc(out, '-');
    }
    draw_of(d, "123456789", 1, out);
    draw_of(d, decimal, 6 + (int)corpus_draw(d, 3), out);
}

static void put_insurance(corpus_draws *d, int language, strbuf *out)
{
    if (language == DE) {
        /* A letter as two digits, eight digits; weights 1 and 2 in turn, cross sums added. */
        char t[16];
        unsigned letter = 1 + (unsigned)corpus_draw(d, 26);
        snprintf(t, sizeof t, "%02u%08u", letter, (unsigned)corpus_draw(d, 100000000));
        int sum = 0;
        for (int i = 0; i < 10; i++) {
            int v = (t[i] - '0') * (i % 2 ? 2 : 1);
            sum += v / 10 + v % 10;
        }
        strbuf_printf(out, "%c%s%d", 'A' + (int)letter - 1, t + 2, sum % 10);
    } else {
        draw_of(d, upper, 3, out);
        draw_of(d, decimal, 9, out);
    }
}

static void put_pem(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    put_block(d, false, out);
}

static void put_certificate(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    put_block(d, true, out);
}

static void put_cvv(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    draw_of(d, decimal, 3, out);
}

static void put_pin(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    draw_of(d, decimal, 4, out);
}

static void put_account(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    draw_of(d, "123456789", 1, out);
    draw_of(d, decimal, 7 + (int)corpus_draw(d, 4), out);
}

static void put_sort_code(corpus_draws *d, int language, strbuf *out)
{
    (void)language;
    char digits[8];
    draw_digits(d, digits, 6);
    put_grouped(digits, "222", "-", out);
}

static void put_encoded_email(corpus_draws *d, int language, strbuf *out)
{
    strbuf plain = {0};
    corpus_put_email(d, language, &plain);
    encode_base64(plain.data, plain.n, true, out);
    strbuf_free(&plain);
}

static const corpus_slot slots[] = {
    {"card", DETECT_PAYMENT_CARD, true, put_card},
    {"cvv", DETECT_PAYMENT_CARD, false, put_cvv},
    {"iban", DETECT_IBAN, true, put_iban},
    {"id", DETECT_NATIONAL_ID, true, put_id},
    {"aadhaar", DETECT_NATIONAL_ID, true, put_aadhaar},
    {"ssn", DETECT_NATIONAL_ID, false, put_ssn},
    {"routing", DETECT_BANK_ACCOUNT, true, put_routing},
    {"account", DETECT_BANK_ACCOUNT, false, put_account},
    {"sortcode", DETECT_BANK_ACCOUNT, false, put_sort_code},
    {"bic", DETECT_BANK_ACCOUNT, false, put_bic},
    {"amount", DETECT_FINANCIAL, false, put_amount},
    {"email", DETECT_EMAIL, false, corpus_put_email},
    {"email64", DETECT_EMAIL, false, put_encoded_email},
    {"phone", DETECT_PHONE, false, corpus_put_phone},
    {"address", DETECT_POSTAL_ADDRESS, false, corpus_put_address},
    {"dob", DETECT_DATE_OF_BIRTH, false, corpus_put_date},
    {"ip", DETECT_IP_ADDRESS, false, put_ip},
    {"ipv6", DETECT_IP_ADDRESS, false, put_ipv6},
    {"mac", DETECT_MAC_ADDRESS, false, put_mac},
    {"pem", DETECT_PRIVATE_KEY, false, put_pem},
    {"certificate", DETECT_CERTIFICATE, false, put_certificate},
    {"token", DETECT_API_KEY, false, put_token},
    {"jwt", DETECT_API_KEY, false, put_jwt},
    {"secret", DETECT_SECRET, false, put_secret},
    {"password", DETECT_PASSWORD, false, put_password},
    {"pin", DETECT_PASSWORD, false, put_pin},
    {"passport", DETECT_PASSPORT, false, put_passport},
    {"licence", DETECT_DRIVING_LICENCE, false, put_licence},
    {"mrn", DETECT_MEDICAL, false, put_record},
    {"icd", DETECT_MEDICAL, false, put_icd},
    {"diagnosis", DETECT_MEDICAL, false, put_diagnosis},
    {"dose", DETECT_MEDICAL, false, put_dose},
    {"pressure", DETECT_MEDICAL, false, put_pressure},
    {"insurance", DETECT_HEALTH_INSURANCE, false, put_insurance},
};

const corpus_slot *corpus_find_slot(const char *name)
{
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (strcmp(slots[i].name, name) == 0) return &slots[i];
    return NULL;
}
