/* Options of a command: one table says what they are called, what --help shows of them, and where
 * their values go. */
#ifndef CALLA_CLI_OPTIONS_H
#define CALLA_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Takes the text of an option's value into *where; `option` ("--kv") is for messages. False after
 * printing a usage error. */
typedef bool cli_take_fn(void *where, const char *option, const char *text);

/* Where a value goes and what it may be; made by the functions below. */
typedef struct cli_value {
    enum { CLI_TRUE, CLI_CONSTANT, CLI_TEXT, CLI_INT32, CLI_INT64, CLI_REAL, CLI_OTHER } kind;
    void *where;
    int constant;       /* CLI_CONSTANT */
    int64_t low, high;  /* the two kinds of whole numbers */
    double least, most; /* CLI_REAL */
    cli_take_fn *take;  /* CLI_OTHER */
} cli_value;

/* Options without a value: *where becomes true, or `constant`. */
static inline cli_value cli_true(bool *where)
{
    return (cli_value){.kind = CLI_TRUE, .where = where};
}
static inline cli_value cli_constant(int *where, int constant)
{
    return (cli_value){.kind = CLI_CONSTANT, .where = where, .constant = constant};
}
/* Options with one. A text is borrowed from argv. */
static inline cli_value cli_text(const char **where)
{
    return (cli_value){.kind = CLI_TEXT, .where = where};
}
static inline cli_value cli_int32(int32_t *where, int32_t low, int32_t high)
{
    return (cli_value){.kind = CLI_INT32, .where = where, .low = low, .high = high};
}
static inline cli_value cli_int64(int64_t *where, int64_t low, int64_t high)
{
    return (cli_value){.kind = CLI_INT64, .where = where, .low = low, .high = high};
}
static inline cli_value cli_real(double *where, double least, double most)
{
    return (cli_value){.kind = CLI_REAL, .where = where, .least = least, .most = most};
}
static inline cli_value cli_other(cli_take_fn *take, void *where)
{
    return (cli_value){.kind = CLI_OTHER, .where = where, .take = take};
}

typedef struct cli_option {
    char letter;          /* 0 = none */
    const char *name;     /* without the dashes */
    const char *argument; /* what the value is called in the help; NULL for an option without one */
    cli_value value;
    const char *help; /* wrapped when printed; NULL: another name of the option before it */
} cli_option;

typedef struct cli_option_group {
    const char *title; /* a line above the options in the help, or NULL */
    const cli_option *options;
    int n;
} cli_option_group;

enum { CLI_MAX_GROUPS = 5, CLI_MAX_OPTIONS = 64 };

typedef struct cli_syntax {
    const char *usage;                       /* the help's text above the options */
    const char *notes;                       /* below them, or NULL */
    cli_option_group groups[CLI_MAX_GROUPS]; /* up to the first with n = 0 */
    int most_operands;                       /* arguments that are no options */
} cli_syntax;

#define CLI_GROUP(title, table)                                                                    \
    {                                                                                              \
        title, table, sizeof(table) / sizeof((table)[0])                                           \
    }

/* Reads a command line; --help and --version work besides the options listed. -1 = go on, with
 * *n_operands operands at *operands (the two may be NULL if there can be none); else the exit code,
 * all being said. */
int cli_parse(int argc, char **argv, const cli_syntax *syntax, char ***operands, int *n_operands);

/* Numbers with their range checked; false after a usage error that names the option, the text and
 * the range. For values within a value; options of such a kind need no more than their table. */
bool cli_parse_int(const char *option, const char *text, int64_t low, int64_t high, int64_t *value);
bool cli_parse_real(const char *option, const char *text, double least, double most, double *value);

#endif
