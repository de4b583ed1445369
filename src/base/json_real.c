#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 17 }; /* enough for every double */

/* A positive decimal number 0.d1 d2 d3 ... x 10^point. */
typedef struct decimal {
    char digits[MAX_DIGITS + 2];
    int n_digits, point;
} decimal;

static double decimal_value(const decimal *d)
{
    char text[48];
    snprintf(text, sizeof text, "%se%d", d->digits, d->point - d->n_digits);
    return strtod(text, NULL);
}

/* x rounded to n_digits. Only digits and exponent are read off printf's result: the decimal point
 * depends on the locale. */
static void decimal_round(double x, int n_digits, decimal *d)
{
    char text[64];
    snprintf(text, sizeof text, "%.*e", n_digits - 1, x);
    d->n_digits = 0;
    const char *p = text;
    for (; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9') d->digits[d->n_digits++] = *p;
    }
    d->point = atoi(p + 1) + 1;
    d->digits[d->n_digits] = '\0';
}

/* One more in the last place. A carry out of the front needs no care: nines all over mean that
 * fewer digits would have done. */
static void decimal_increment(decimal *d)
{
    int i = d->n_digits - 1;
    while (i > 0 && d->digits[i] == '9') d->digits[i--] = '0';
    if (d->digits[i] != '9') d->digits[i]++;
}

/* The shortest decimal that reads back as x > 0, the nearest to x of those. Rounding x to n digits
 * gives it, with one exception: below a power of two doubles lie twice as dense, so the nearest
 * decimal below may read back as another double where the one above does not. */
static void decimal_shortest(double x, decimal *d)
{
    int exponent;
    bool power_of_two = frexp(x, &exponent) == 0.5;
    /* Up to DBL_DIG digits survive the way through a normal double, and trailing zeros go below. */
    for (int n = x >= DBL_MIN ? DBL_DIG : 1; n <= MAX_DIGITS; n++) {
        decimal_round(x, n, d);
        if (decimal_value(d) == x) break;
        if (!power_of_two) continue;
        decimal_increment(d);
        if (decimal_value(d) == x) break;
    }
    while (d->n_digits > 1 && d->digits[d->n_digits - 1] == '0') d->digits[--d->n_digits] = '\0';
}

/* Python's float_repr_style "short": an exponent below 1e-4 and from 1e16 on. */
void json_write_real(strbuf *out, double x)
{
    if (signbit(x)) strbuf_putc(out, '-');
    x = fabs(x);
    if (x == 0) {
        strbuf_puts(out, "0.0");
        return;
    }
    decimal d;
    decimal_shortest(x, &d);
    if (d.point <= -4 || d.point > 16) {
        strbuf_append(out, d.digits, 1);
        if (d.n_digits > 1) strbuf_putc(out, '.');
        strbuf_puts(out, d.digits + 1);
        strbuf_printf(out, "e%c%02d", d.point > 0 ? '+' : '-', abs(d.point - 1));
    } else if (d.point <= 0) {
        strbuf_puts(out, "0.");
        for (int i = d.point; i < 0; i++) strbuf_putc(out, '0');
        strbuf_puts(out, d.digits);
    } else {
        for (int i = 0; i < d.point; i++) strbuf_putc(out, i < d.n_digits ? d.digits[i] : '0');
        strbuf_putc(out, '.');
        strbuf_puts(out, d.n_digits > d.point ? d.digits + d.point : "0");
    }
}
