#include "hybrid/detect/checks.h"
#include "hybrid/detect/id_checks.h"

#include <string.h>

static int value(char c)
{
    return c - '0';
}

/* YYMMDD of an unknown century: 29 February always may be. */
static bool is_short_date(const char *yymmdd)
{
    return check_date(0, check_number(yymmdd + 2, 2), check_number(yymmdd + 4, 2));
}

static bool is_short_date_turned(const char *ddmmyy)
{
    return check_date(0, check_number(ddmmyy + 2, 2), check_number(ddmmyy, 2));
}

/* ---- United Kingdom, Ireland ---- */

/* 10 digits, modulo 11. */
bool id_is_uk_nhs(const char *id)
{
    static const unsigned char weights[] = {10, 9, 8, 7, 6, 5, 4, 3, 2};
    unsigned rest = 11 - check_weighted(id, weights, 9) % 11;
    return !check_all_same(id, 10) && (rest == 11 ? 0 : rest) == (unsigned)value(id[9]);
}

/* No check digit, but letters that are not given out. */
bool id_is_uk_nino(const char *id)
{
    static const char *const unused[] = {"BG", "GB", "NK", "KN", "TN", "NT", "ZZ"};
    for (int i = 0; i < 7; i++)
        if (memcmp(id, unused[i], 2) == 0) return false;
    return !strchr("DFIQUV", id[0]) && !strchr("DFIOQUV", id[1]) && id[8] >= 'A' && id[8] <= 'D';
}

/* 7 digits and a check letter modulo 23; a second letter counts nine times. */
bool id_is_ie_pps(const char *id)
{
    static const unsigned char weights[] = {8, 7, 6, 5, 4, 3, 2};
    unsigned sum = check_weighted(id, weights, 7);
    if (id[8] && id[8] != 'W') sum += 9 * (unsigned)(id[8] - 'A' + 1);
    return id[7] == "WABCDEFGHIJKLMNOPQRSTUV"[sum % 23];
}

/* ---- Germany, Austria, Switzerland ---- */

/* 11 digits: of the first ten one stands there two or three times, no other more than once. */
bool id_is_de_steuer(const char *id)
{
    int count[10] = {0}, repeated = 0;
    for (int i = 0; i < 10; i++) count[value(id[i])]++;
    for (int d = 0; d < 10; d++) {
        if (count[d] > 3) return false;
        repeated += count[d] > 1;
    }
    for (int i = 0; i + 2 < 10; i++)
        if (id[i] == id[i + 1] && id[i] == id[i + 2]) return false;
    return id[0] != '0' && repeated == 1 && check_mod_11_10(id, 11);
}

/* Area, date of birth, a letter (as two digits), a serial number, and a check digit: cross sums of
 * weighted digits. */
bool id_is_de_svnr(const char *id)
{
    static const unsigned char weights[] = {2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1};
    char digits[13];
    unsigned sum = 0, letter = (unsigned)(id[8] - 'A' + 1);
    memcpy(digits, id, 8);
    digits[8] = (char)('0' + letter / 10);
    digits[9] = (char)('0' + letter % 10);
    memcpy(digits + 10, id + 9, 2);
    for (int i = 0; i < 12; i++) {
        unsigned product = (unsigned)value(digits[i]) * weights[i];
        sum += product / 10 + product % 10;
    }
    return sum % 10 == (unsigned)value(id[11]) && is_short_date_turned(id + 2);
}

/* The check digit of ICAO 9303: weights 7, 3, 1 in turn, A counts 10. */
static bool is_icao(const char *id, size_t n)
{
    static const unsigned weights[] = {7, 3, 1};
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        char c = id[i];
        sum += weights[i % 3] * (unsigned)(c >= 'A' ? c - 'A' + 10 : value(c));
    }
    return sum % 10 == (unsigned)value(id[n]);
}

/* An identity card's number has no vowels, nor letters that look like digits. */
bool id_is_de_ausweis(const char *id)
{
    return strspn(id, "0123456789CFGHJKLMNPRTVWXYZ") == 10 && is_icao(id, 9);
}

/* 3 digits, a check digit, the date of birth. */
bool id_is_at_svnr(const char *id)
{
    static const unsigned char weights[] = {3, 7, 9, 0, 5, 8, 4, 2, 1, 6};
    return id[0] != '0' && check_weighted(id, weights, 10) % 11 == (unsigned)value(id[3]) &&
           is_short_date_turned(id + 4);
}

/* 756 and ten digits, checked as an EAN. */
bool id_is_ch_ahv(const char *id)
{
    static const unsigned char weights[] = {1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1};
    return memcmp(id, "756", 3) == 0 && check_weighted(id, weights, 13) % 10 == 0;
}

/* ---- France, Belgium, Netherlands ---- */

/* Sex, year and month of birth, department, commune, order, and a key modulo 97; Corsica's 2A and
 * 2B count as 19 and 18. */
bool id_is_fr_nir(const char *id)
{
    char digits[16];
    memcpy(digits, id, 15);
    if (!strchr("123478", id[0])) return false;
    if (id[6] == 'A' || id[6] == 'B') {
        if (id[5] != '2') return false;
        memcpy(digits + 5, id[6] == 'A' ? "19" : "18", 2);
    }
    for (int i = 0; i < 15; i++)
        if (digits[i] < '0' || digits[i] > '9') return false;
    unsigned month = check_number(digits + 3, 2), key = check_number(digits + 13, 2);
    bool real = (month >= 1 && month <= 12) || (month >= 20 && month <= 42) || month >= 50;
    return real && check_number(digits + 5, 2) > 0 && 97 - check_modulo(digits, 13, 97) == key;
}

/* Date of birth, order, and a key modulo 97; born since 2000: with a 2 before. */
bool id_is_be_nn(const char *id)
{
    unsigned key = check_number(id + 9, 2), number = check_number(id, 9);
    bool fits = 97 - number % 97 == key || 97 - (unsigned)((2000000000ull + number) % 97) == key;
    return fits && is_short_date(id);
}

/* 9 digits, the "elfproef": the last counts -1. */
bool id_is_nl_bsn(const char *id)
{
    static const unsigned char weights[] = {9, 8, 7, 6, 5, 4, 3, 2, 10};
    return !check_all_same(id, 9) && check_weighted(id, weights, 9) % 11 == 0;
}

/* ---- Spain, Portugal, Italy ---- */

static const char dni_letters[] = "TRWAGMYFPDXBNJZSQVHLCKE";

bool id_is_es_dni(const char *id)
{
    return check_number(id, 8) > 0 && id[8] == dni_letters[check_number(id, 8) % 23];
}

/* Province, number and the remainder of both by 97; a short number loses its zeros. */
bool id_is_es_nss(const char *id)
{
    uint32_t province = check_number(id, 2), number = check_number(id + 2, 8);
    uint64_t all = number < 10000000 ? (uint64_t)province * 10000000 + number
                                     : (uint64_t)province * 100000000 + number;
    return province >= 1 && province <= 66 && number > 0 && all % 97 == check_number(id + 10, 2);
}

/* X, Y, Z count as 0, 1, 2. */
bool id_is_es_nie(const char *id)
{
    if (id[0] < 'X' || id[0] > 'Z') return false;
    uint32_t number = (uint32_t)(id[0] - 'X') * 10000000u + check_number(id + 1, 7);
    return id[8] == dni_letters[number % 23];
}

bool id_is_pt_nif(const char *id)
{
    static const unsigned char weights[] = {9, 8, 7, 6, 5, 4, 3, 2};
    unsigned rest = check_weighted(id, weights, 8) % 11;
    return strchr("1235689", id[0]) && !check_all_same(id, 9) &&
           (rest < 2 ? 0 : 11 - rest) == (unsigned)value(id[8]);
}

/* Name, date of birth, place, and a check letter: characters at odd places count by a table, the
 * others by their order. Of people with the same, digits are replaced by letters. */
bool id_is_it_codice(const char *id)
{
    static const unsigned char odd[] = {1,  0,  5, 7, 9, 13, 15, 17, 19, 21, 2,  4,  18,
                                        20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23};
    static const int digits[] = {6, 7, 9, 10, 12, 13, 14};
    char plain[16];
    memcpy(plain, id, 16);
    for (int i = 0; i < 7; i++) {
        char *c = &plain[digits[i]];
        const char *letter = *c < 'A' ? NULL : strchr("LMNPQRSTUV", *c);
        if (*c >= 'A' && !letter) return false;
        if (letter) *c = (char)('0' + (letter - "LMNPQRSTUV") % 10);
    }
    unsigned day = check_number(plain + 9, 2), sum = 0;
    if (!strchr("ABCDEHLMPRST", id[8]) || !(day >= 1 && day <= 71) || (day > 31 && day < 41))
        return false;
    for (int i = 0; i < 15; i++) {
        unsigned order = (unsigned)(id[i] < 'A' ? value(id[i]) : id[i] - 'A');
        sum += i % 2 ? order : odd[order];
    }
    return id[15] == (char)('A' + sum % 26);
}

/* ---- Poland, Czechia, Slovakia, Romania, Bulgaria, Russia ---- */

/* 9 digits and their weighted sum modulo 11. */
bool id_is_pl_nip(const char *id)
{
    static const unsigned char weights[] = {6, 5, 7, 2, 3, 4, 5, 6, 7};
    return !check_all_same(id, 10) && check_weighted(id, weights, 9) % 11 == (unsigned)value(id[9]);
}

/* Three letters, and six digits of which the first checks all others by 7, 3, 1 in turn. */
bool id_is_pl_dowod(const char *id)
{
    static const unsigned weights[] = {7, 3, 1, 0, 7, 3, 1, 7, 3};
    unsigned sum = 0;
    for (int i = 0; i < 9; i++)
        sum += weights[i] * (unsigned)(i < 3 ? id[i] - 'A' + 10 : value(id[i]));
    return sum % 10 == (unsigned)value(id[3]);
}

/* Months of other centuries are moved by 20. */
bool id_is_pl_pesel(const char *id)
{
    static const unsigned char weights[] = {1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1};
    return check_weighted(id, weights, 11) % 10 == 0 &&
           check_date(0, check_number(id + 2, 2) % 20, check_number(id + 4, 2));
}

/* Women's months are moved by 50, and both by 20 where a day's numbers ran out. */
bool id_is_cz_rc(const char *id)
{
    unsigned month = check_number(id + 2, 2) % 50;
    unsigned rest = (unsigned)((check_number(id, 9) % 11 * 10 + (unsigned)value(id[9])) % 11);
    return rest == 0 && check_date(0, month > 20 ? month - 20 : month, check_number(id + 4, 2));
}

bool id_is_ro_cnp(const char *id)
{
    static const unsigned char weights[] = {2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9};
    unsigned rest = check_weighted(id, weights, 12) % 11;
    return id[0] != '0' && (rest == 10 ? 1 : rest) == (unsigned)value(id[12]) &&
           is_short_date(id + 1);
}

bool id_is_bg_egn(const char *id)
{
    static const unsigned char weights[] = {2, 4, 8, 5, 10, 9, 7, 3, 6};
    unsigned month = check_number(id + 2, 2);
    return check_weighted(id, weights, 9) % 11 % 10 == (unsigned)value(id[9]) &&
           check_date(0,
                      month > 40   ? month - 40
                      : month > 20 ? month - 20
                                   : month,
                      check_number(id + 4, 2));
}

bool id_is_ru_snils(const char *id)
{
    static const unsigned char weights[] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    return check_number(id, 9) > 1001998 &&
           check_weighted(id, weights, 9) % 101 % 100 == check_number(id + 9, 2);
}

/* ---- the North ---- */

/* The day may be moved by 60 (samordningsnummer). */
bool id_is_se_10(const char *id)
{
    unsigned day = check_number(id + 4, 2);
    return check_luhn(id, 10) && check_date(0, check_number(id + 2, 2), day > 60 ? day - 60 : day);
}

bool id_is_se_12(const char *id)
{
    unsigned century = check_number(id, 2);
    return century >= 18 && century <= 20 && id_is_se_10(id + 2);
}

/* DDMMYY, the century's sign (a letter; '-' and '+' are no part of `id`), three digits and a
 * character modulo 31. */
bool id_is_fi_hetu(const char *id)
{
    const char *order = id[6] >= 'A' ? id + 7 : id + 6;
    if (order[0] < '0' || order[0] > '9' || (id[6] >= 'A' && !strchr("ABCDEFYXWVU", id[6])))
        return false;
    uint32_t number = check_number(id, 6) * 1000 + check_number(order, 3);
    return is_short_date_turned(id) && order[3] == "0123456789ABCDEFHJKLMNPRSTUVWXY"[number % 31];
}

/* Since 2007 without a check digit. */
bool id_is_dk_cpr(const char *id)
{
    return is_short_date_turned(id) && check_number(id + 6, 4) > 0;
}

bool id_is_no_fnr(const char *id)
{
    static const unsigned char first[] = {3, 7, 6, 1, 8, 9, 4, 5, 2, 1};
    static const unsigned char second[] = {5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1};
    unsigned day = check_number(id, 2);
    return check_weighted(id, first, 10) % 11 == 0 && check_weighted(id, second, 11) % 11 == 0 &&
           check_date(0, check_number(id + 2, 2), day > 40 ? day - 40 : day);
}

/* Italy's electronic identity card: no check digit, but a form and its name beside it. */
bool id_is_it_cie(const char *id)
{
    return id[0] == 'C';
}
