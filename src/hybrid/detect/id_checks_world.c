#include "hybrid/detect/checks.h"
#include "hybrid/detect/id_checks.h"

#include <string.h>

static unsigned value(char c)
{
    return (unsigned)(c - '0');
}

/* ---- the Americas ---- */

/* No check digit: numbers that are not given out. */
bool id_is_us_ssn(const char *id)
{
    uint32_t area = check_number(id, 3);
    return area != 0 && area != 666 && area < 900 && check_number(id + 3, 2) != 0 &&
           check_number(id + 5, 4) != 0;
}

bool id_is_us_itin(const char *id)
{
    uint32_t group = check_number(id + 3, 2);
    return id[0] == '9' && !check_all_same(id, 9) &&
           ((group >= 50 && group <= 65) || (group >= 70 && group <= 88) ||
            (group >= 90 && group <= 92) || group >= 94);
}

bool id_is_br_cpf(const char *id)
{
    static const unsigned char weights[] = {11, 10, 9, 8, 7, 6, 5, 4, 3, 2};
    unsigned first = check_weighted(id, weights + 1, 9) * 10 % 11 % 10;
    unsigned second = check_weighted(id, weights, 10) * 10 % 11 % 10;
    return !check_all_same(id, 11) && first == value(id[9]) && second == value(id[10]);
}

bool id_is_ar_cuil(const char *id)
{
    static const unsigned char weights[] = {5, 4, 3, 2, 7, 6, 5, 4, 3, 2};
    unsigned rest = 11 - check_weighted(id, weights, 10) % 11;
    return (id[0] == '2' || id[0] == '3') && (rest == 11 ? 0 : rest) == value(id[10]);
}

/* n digits and a check digit modulo 11, whose 10 is K; weights from the right 2 ... 7 and again. */
static bool is_cl_rut(const char *id, int n)
{
    unsigned sum = 0;
    for (int i = 0; i < n; i++) sum += value(id[n - 1 - i]) * (unsigned)(2 + i % 6);
    return id[n] == "0K987654321"[sum % 11];
}

bool id_is_cl_rut_7(const char *id)
{
    return is_cl_rut(id, 7);
}

bool id_is_cl_rut_8(const char *id)
{
    return is_cl_rut(id, 8);
}

/* Name, date of birth, sex, place, and a check digit; letters count by their place in an alphabet
 * with the N with tilde after N. */
bool id_is_mx_curp(const char *id)
{
    unsigned sum = 0;
    for (int i = 0; i < 17; i++) {
        unsigned order = id[i] < 'A' ? value(id[i]) : (unsigned)(id[i] - 'A' + 10 + (id[i] > 'N'));
        sum += order * (unsigned)(18 - i);
    }
    return strchr("HMX", id[10]) && (10 - sum % 10) % 10 == value(id[17]) &&
           check_date(0, check_number(id + 6, 2), check_number(id + 8, 2));
}

bool id_is_ca_sin(const char *id)
{
    return id[0] != '0' && id[0] != '8' && check_luhn(id, 9);
}

/* ---- Oceania, Africa ---- */

bool id_is_au_tfn(const char *id)
{
    static const unsigned char weights[] = {1, 4, 3, 7, 5, 8, 6, 9, 10};
    return check_number(id, 9) > 0 && check_weighted(id, weights, 9) % 11 == 0;
}

bool id_is_za_id(const char *id)
{
    return check_luhn(id, 13) && value(id[10]) <= 2 &&
           check_date(0, check_number(id + 2, 2), check_number(id + 4, 2));
}

/* ---- Asia ---- */

bool id_is_tr_tckn(const char *id)
{
    unsigned odd = 0, even = 0, all = 0;
    for (int i = 0; i < 9; i += 2) odd += value(id[i]);
    for (int i = 1; i < 8; i += 2) even += value(id[i]);
    for (int i = 0; i < 10; i++) all += value(id[i]);
    return id[0] != '0' && (7 * odd + 9 * even) % 10 == value(id[9]) && all % 10 == value(id[10]);
}

bool id_is_in_aadhaar(const char *id)
{
    return id[0] > '1' && !check_all_same(id, 12) && check_verhoeff(id, 12);
}

/* No check digit; the fourth letter is the kind of holder. */
bool id_is_in_pan(const char *id)
{
    return strchr("ABCFGHJLPT", id[3]) != NULL;
}

/* Place, date of birth, order, and ISO 7064's MOD 11-2, whose 10 is X. */
bool id_is_cn_rid(const char *id)
{
    static const unsigned char weights[] = {7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2};
    uint32_t year = check_number(id + 6, 4);
    return id[17] == "10X98765432"[check_weighted(id, weights, 17) % 11] && year >= 1850 &&
           year <= 2100 && check_date(year, check_number(id + 10, 2), check_number(id + 12, 2));
}

bool id_is_jp_my_number(const char *id)
{
    static const unsigned char weights[] = {6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2};
    unsigned rest = check_weighted(id, weights, 11) % 11;
    return !check_all_same(id, 12) && (rest < 2 ? 0 : 11 - rest) == value(id[11]);
}

bool id_is_kr_rrn(const char *id)
{
    static const unsigned char weights[] = {2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5};
    return (11 - check_weighted(id, weights, 12) % 11) % 10 == value(id[12]) &&
           check_date(0, check_number(id + 2, 2), check_number(id + 4, 2));
}
