/* Check digits that several numbers share. Digits are ASCII, [n] of them. */
#ifndef CALLA_HYBRID_CHECKS_H
#define CALLA_HYBRID_CHECKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ISO/IEC 7812-1, annex B. */
bool check_luhn(const char *digits, size_t n);
/* Verhoeff's check in the dihedral group of order 10. */
bool check_verhoeff(const char *digits, size_t n);
/* The sum of digits times weights [n]. */
unsigned check_weighted(const char *digits, const unsigned char *weights, size_t n);
/* The number modulo m, of digits and letters (A is 10 ... Z is 35) as ISO 7064 and 13616 read them.
 */
unsigned check_modulo(const char *text, size_t n, unsigned m);
/* ISO 7064, MOD 11,10. */
bool check_mod_11_10(const char *digits, size_t n);
/* Whether all n digits are the same. */
bool check_all_same(const char *digits, size_t n);
/* The number of n <= 9 digits. */
uint32_t check_number(const char *digits, size_t n);
/* Whether there can be such a day. Year 0: of an unknown year. */
bool check_date(unsigned year, unsigned month, unsigned day);

#endif
