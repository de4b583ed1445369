#include "hybrid/detect/checks.h"

bool check_luhn(const char *digits, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned digit = (unsigned)(digits[n - 1 - i] - '0');
        if (i % 2) digit = digit < 5 ? 2 * digit : 2 * digit - 9;
        sum += digit;
    }
    return sum % 10 == 0 && !check_all_same(digits, n);
}

bool check_verhoeff(const char *digits, size_t n)
{
    static const unsigned char permutation[8][10] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 5, 7, 6, 2, 8, 3, 0, 9, 4},
        {5, 8, 0, 3, 7, 9, 6, 1, 4, 2}, {8, 9, 1, 6, 0, 4, 3, 5, 2, 7},
        {9, 4, 5, 3, 1, 2, 6, 8, 7, 0}, {4, 2, 8, 6, 5, 7, 3, 9, 0, 1},
        {2, 7, 9, 3, 8, 0, 6, 4, 1, 5}, {7, 0, 4, 6, 9, 1, 3, 2, 5, 8}};
    unsigned c = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned p = permutation[i % 8][digits[n - 1 - i] - '0'];
        /* The product of two elements: rotations 0-4, reflections 5-9. */
        if (c < 5)
            c = p < 5 ? (c + p) % 5 : 5 + (c + p) % 5;
        else
            c = p < 5 ? 5 + (c - p) % 5 : (c - p + 5) % 5;
    }
    return c == 0;
}

unsigned check_weighted(const char *digits, const unsigned char *weights, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += weights[i] * (unsigned)(digits[i] - '0');
    return sum;
}

unsigned check_modulo(const char *text, size_t n, unsigned m)
{
    unsigned rest = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9')
            rest = (10 * rest + (unsigned)(c - '0')) % m;
        else
            rest = (100 * rest + ((unsigned)(c | 0x20) - 'a' + 10)) % m;
    }
    return rest;
}

bool check_mod_11_10(const char *digits, size_t n)
{
    unsigned product = 10;
    for (size_t i = 0; i + 1 < n; i++) {
        unsigned sum = ((unsigned)(digits[i] - '0') + product) % 10;
        product = 2 * (sum ? sum : 10) % 11;
    }
    return (11 - product) % 10 == (unsigned)(digits[n - 1] - '0');
}

bool check_all_same(const char *digits, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (digits[i] != digits[0]) return false;
    return true;
}

uint32_t check_number(const char *digits, size_t n)
{
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) value = 10 * value + (uint32_t)(digits[i] - '0');
    return value;
}

bool check_date(unsigned year, unsigned month, unsigned day)
{
    static const unsigned char days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12 || day < 1 || day > days[month - 1]) return false;
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return month != 2 || day < 29 || leap;
}
