/* Command lines by getopt_long, from the tables of options.h. */
#include "options.h"
#include "cli.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

bool cli_parse_int(const char *option, const char *text, int64_t low, int64_t high, int64_t *value)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < low || v > high) {
        cli_usage_error("%s: '%s' is not a whole number from %lld to %lld", option, text,
                        (long long)low, (long long)high);
        return false;
    }
    *value = v;
    return true;
}

bool cli_parse_real(const char *option, const char *text, double least, double most, double *value)
{
    char *end;
    double v = strtod(text, &end); /* an overflow is infinite */
    if (end == text || *end || !isfinite(v) || v < least || v > most) {
        cli_usage_error("%s: '%s' is not a number from %g to %g", option, text, least, most);
        return false;
    }
    *value = v;
    return true;
}

static bool take_value(const cli_option *o, const char *text)
{
    const cli_value *v = &o->value;
    char option[64];
    int64_t n;
    snprintf(option, sizeof option, "--%s", o->name);
    switch (v->kind) {
    case CLI_TRUE:
        *(bool *)v->where = true;
        return true;
    case CLI_CONSTANT:
        *(int *)v->where = v->constant;
        return true;
    case CLI_TEXT:
        *(const char **)v->where = text;
        return true;
    case CLI_INT32:
        if (!cli_parse_int(option, text, v->low, v->high, &n)) return false;
        *(int32_t *)v->where = (int32_t)n;
        return true;
    case CLI_INT64:
        return cli_parse_int(option, text, v->low, v->high, v->where);
    case CLI_REAL:
        return cli_parse_real(option, text, v->least, v->most, v->where);
    case CLI_OTHER:
        return v->take(v->where, option, text);
    }
    return false;
}

/* ---- help ---- */

enum { HELP_COLUMN = 24, HELP_WIDTH = 96 };

/* `text` from column `at` on, broken between words, further lines from HELP_COLUMN on. */
static void print_wrapped(const char *text, int at)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (at > HELP_COLUMN && at + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        } else if (at > HELP_COLUMN) {
            at += printf(" ");
        }
        at += printf("%.*s", n, text);
        text += n + strspn(text + n, " ");
    }
    printf("\n");
}

static void print_option(const cli_option *o)
{
    char label[80];
    if (!o->help) return;
    int n = o->letter ? snprintf(label, sizeof label, "  -%c, --%s", o->letter, o->name)
                      : snprintf(label, sizeof label, "      --%s", o->name);
    if (o->argument) n += snprintf(label + n, sizeof label - (size_t)n, " %s", o->argument);
    assert(n < (int)sizeof label);
    int gap = n + 2 > HELP_COLUMN ? 2 : HELP_COLUMN - n;
    printf("%s%*s", label, gap, "");
    print_wrapped(o->help, n + gap);
}

static const cli_option common_options[] = {
    {.letter = 'h', .name = "help", .help = "this text"},
    {.letter = 'V', .name = "version", .help = "the program's version"},
};
enum { OPTION_HELP, OPTION_VERSION, N_COMMON };

static void print_help(const cli_syntax *s)
{
    fputs(s->usage, stdout);
    for (int g = 0; g < CLI_MAX_GROUPS && s->groups[g].n; g++) {
        printf(s->groups[g].title ? "\n%s:\n" : "\n", s->groups[g].title);
        for (int i = 0; i < s->groups[g].n; i++) print_option(&s->groups[g].options[i]);
    }
    printf("\n");
    for (int i = 0; i < N_COMMON; i++) print_option(&common_options[i]);
    if (s->notes) printf("\n%s", s->notes);
}

/* ---- the command line ---- */

enum { FIRST_VALUE = 256 }; /* getopt_long's value of option 0; beyond any letter */

/* All options in one list and in getopt_long's two forms. */
typedef struct option_list {
    const cli_option *all[CLI_MAX_OPTIONS]; /* [n] */
    struct option table[CLI_MAX_OPTIONS + 1];
    char letters[2 * CLI_MAX_OPTIONS + 2]; /* the ':' in front lets us print what is wrong */
    int n;
} option_list;

static void add_option(option_list *list, const cli_option *o)
{
    assert(list->n < CLI_MAX_OPTIONS);
    list->all[list->n] = o;
    list->table[list->n] = (struct option){o->name, o->argument ? required_argument : no_argument,
                                           NULL, FIRST_VALUE + list->n};
    list->n++;
    if (!o->letter) return;
    size_t used = strlen(list->letters);
    snprintf(list->letters + used, sizeof list->letters - used, o->argument ? "%c:" : "%c",
             o->letter);
}

/* The number of the option that getopt_long's result stands for, or -1. */
static int find_option(const option_list *list, int result)
{
    if (result >= FIRST_VALUE) return result - FIRST_VALUE;
    for (int i = 0; i < list->n; i++)
        if (result == list->all[i]->letter) return i;
    return -1;
}

/* optopt is 0, the value of the long option, or the letter, as a char; argv[optind - 1] is the
 * argument except within a group of letters. */
static int option_error(int result, char **argv)
{
    const char *argument = argv[optind - 1];
    if (result == ':') return cli_usage_error("option '%s' needs a value", argument);
    if (optopt > 0x20 && optopt < 0x7f) return cli_usage_error("unknown option '-%c'", optopt);
    if (optopt && optopt < FIRST_VALUE)
        return cli_usage_error("unknown option '-\\x%02x'", (unsigned char)optopt);
    if (optopt) return cli_usage_error("option '%s' takes no value", argument);
    return cli_usage_error("unknown or ambiguous option '%s'", argument);
}

int cli_parse(int argc, char **argv, const cli_syntax *s, char ***operands, int *n_operands)
{
    option_list list = {.letters = ":"};
    for (int i = 0; i < N_COMMON; i++) add_option(&list, &common_options[i]);
    for (int g = 0; g < CLI_MAX_GROUPS; g++)
        for (int i = 0; i < s->groups[g].n; i++) add_option(&list, &s->groups[g].options[i]);
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, list.letters, list.table, NULL)) != -1;) {
        int i = find_option(&list, c);
        if (i < 0) return option_error(c, argv);
        if (i == OPTION_HELP) {
            print_help(s);
            return EXIT_OK;
        }
        if (i == OPTION_VERSION) {
            printf("calla %s\n", calla_version());
            return EXIT_OK;
        }
        if (!take_value(list.all[i], optarg)) return EXIT_USAGE;
    }
    if (argc - optind > s->most_operands)
        return cli_usage_error("unexpected argument '%s'", argv[optind + s->most_operands]);
    if (operands) *operands = argv + optind;
    if (n_operands) *n_operands = argc - optind;
    return -1;
}
