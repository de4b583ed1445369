/* Passwords among the arguments of programs: `curl -u name:password`, `mysql -ppassword`,
 * `sshpass -p password`. */
#include "hybrid/detect/scan.h"

#include <string.h>

enum { MAX_LINE = 400, MAX_PASSWORD = 128 };

/* How a program is given its password. */
typedef struct flag {
    const char *program; /* begins so */
    const char *text;    /* with the space before it */
    bool attached;       /* the value follows without a space; else after it */
    bool after_colon;    /* the value is NAME:PASSWORD */
} flag;

static const flag flags[] = {
    {"curl", " -u", false, true},
    {"curl", " --user", false, true},
    {"curl", " --proxy-user", false, true},
    {"wget", " --password", false, false},
    {"my", " -p", true, false},
    {"my", " --password", false, false},
    {"mariadb", " -p", true, false},
    {"sshpass", " -p", false, false},
    {"docker", " -p", false, false},
    {"docker", " --password", false, false},
    {"podman", " -p", false, false},
    {"mongo", " -p", false, false},
    {"mongo", " --password", false, false},
    {"redis", " -a", false, false},
    {"smbclient", " -U", false, true},
};

/* The argument at `at`, without quotes. */
static bool read_argument(const scan *s, size_t at, size_t end, size_t *start, size_t *stop)
{
    char quote = at < end && strchr("'\"", s->text[at]) ? s->text[at] : '\0';
    *start = *stop = at + (quote != '\0');
    while (*stop < end && (quote ? s->text[*stop] != quote : !is_space(s->text[*stop]))) ++*stop;
    return *stop > *start && (!quote || *stop < end);
}

static void try_flag(scan *s, const flag *f, size_t at, size_t end)
{
    size_t start, stop;
    char c = char_at(s, at);
    if (f->attached ? is_space(c) : c != ' ' && c != '=') return;
    if (!read_argument(s, f->attached ? at : at + 1, end, &start, &stop)) return;
    if (f->after_colon) {
        const char *sign = memchr(s->text + start, ':', stop - start);
        const char *percent = memchr(s->text + start, '%', stop - start);
        if (!sign) sign = percent;
        if (!sign) return;
        start = (size_t)(sign - s->text) + 1;
    }
    /* A variable or a stand-in is none, nor is an option that only begins so. */
    if (stop - start < 4 || stop - start > MAX_PASSWORD || strchr("$<{-", s->text[start])) return;
    scan_add(s, DETECT_PASSWORD, "argument", start, stop, 0.9);
}

void find_arguments(scan *s)
{
    size_t done = 0;
    for (size_t i = 0; i < s->cues[CUE_COMMAND].n; i++) {
        const cue *c = &s->cues[CUE_COMMAND].items[i];
        size_t most = s->n - c->end < MAX_LINE ? s->n - c->end : MAX_LINE;
        const char *line = s->text + c->end, *newline = memchr(line, '\n', most);
        size_t end = newline ? (size_t)(newline - s->text) : c->end + most;
        if (c->start < done) continue; /* one program a line: a line is read once */
        done = end;
        for (size_t k = 0; k < sizeof flags / sizeof *flags; k++) {
            size_t n = strlen(flags[k].text), n_program = strlen(flags[k].program);
            if (s->n - c->start < n_program ||
                strncasecmp(s->text + c->start, flags[k].program, n_program) != 0)
                continue;
            const char *at = memmem(line, end - c->end, flags[k].text, n);
            if (at) try_flag(s, &flags[k], (size_t)(at - s->text) + n, end);
        }
    }
}
