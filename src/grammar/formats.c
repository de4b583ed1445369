/* The formats of JSON schema as patterns: never more than the format allows, and for hosts, mail
 * addresses and URIs less (plain ASCII, bounded lengths), which is what one wants generated. */
#include "grammar/regex.h"

#include <string.h>

#define YEAR    "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define BY_FOUR "(0[48]|[2468][048]|[13579][26])"
#define LEAP    "(\\d\\d" BY_FOUR "|" BY_FOUR "00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)"           \
    "|02-(0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME            "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL           "[A-Za-z0-9]([A-Za-z0-9-]{0,22}[A-Za-z0-9])?"
#define HOST            LABEL "(\\." LABEL "){0,7}"
#define BYTE            "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4            BYTE "(\\." BYTE "){3}"
#define H16             "[0-9A-Fa-f]{1,4}"
#define ATEXT           "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
#define PCHAR           "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define SPAN(low, high) "((" H16 ":){0," #low "}" H16 ")?::((" H16 ":){0," #high "}" H16 ")?"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(\\d{1,9}W|(\\d{1,9}Y(\\d{1,9}M(\\d{1,9}D)?)?|\\d{1,9}M(\\d{1,9}D)?|\\d{1,9}D)"
                 "(T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S))?"
                 "|T(\\d{1,9}H(\\d{1,9}M(\\d{1,9}S)?)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S))$"},
    {"uuid", "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"},
    {"hostname", "^" HOST "$"},
    {"email", "^" ATEXT "(\\." ATEXT "){0,2}@" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    /* Whole, or with one gap: at most five groups before it where at most one follows, and so on,
     * so that there are never more than seven. */
    {"ipv6", "^((" H16 ":){7}" H16 "|" SPAN(5, 0) "|" SPAN(4, 1) "|" SPAN(3, 2) "|" SPAN(
                 2, 3) "|" SPAN(1, 4) "|" SPAN(0, 5) ")$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:(//" HOST "(:\\d{1,5})?(/" PCHAR "*)*|" PCHAR "+)"
            "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?$"},
};

const char *format_pattern(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    return NULL;
}
