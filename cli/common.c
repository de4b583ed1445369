#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *command_name;
static atomic_bool cancelled;
static volatile sig_atomic_t cancel_signal;
static bool output_failed, reader_gone;
static bool interrupted; /* a signal ended a wait for a file: nothing to say, see cli_finish */
static bool progress_shown;

/* ---- messages ---- */

static void print_prefix(void)
{
    cli_progress_end();
    fprintf(stderr, command_name ? "calla %s: " : "calla: ", command_name);
}

/* One line, whatever the values in it hold. */
static void print_line(const char *format, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    print_prefix();
    fprintf(stderr, "%s\n", text);
}

int cli_fail(const calla_error *err)
{
    if (err->code == CALLA_ERR_CANCELLED && atomic_load(&cancelled)) {
        cli_progress_end();
        return cli_cancel_exit();
    }
    return cli_failf("%s", err->message);
}

int cli_failf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    return EXIT_FAILED;
}

int cli_usage_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    fprintf(stderr, command_name ? "try 'calla %s --help'\n" : "try 'calla --help'\n",
            command_name);
    return EXIT_USAGE;
}

/* Says from errno that something could not be done with a file; not if the user ended the wait for
 * it. */
static void file_failed(const char *what, const char *path)
{
    if (errno == EINTR && atomic_load(&cancelled))
        interrupted = true;
    else
        cli_failf("cannot %s %s: %s", what, path, strerror(errno));
}

/* ---- signals ---- */

static void on_signal(int number)
{
    if (atomic_exchange(&cancelled, true)) _exit(128 + number);
    cancel_signal = number;
}

void cli_begin(const char *command)
{
    command_name = command;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* writes then fail with EPIPE, which cli_write takes as "done" */
    signal(SIGXFSZ, SIG_IGN); /* a file size limit then fails the write, which is reported */
    cli_report_bus_errors(command);
}

const atomic_bool *cli_cancel_flag(void)
{
    return &cancelled;
}

int cli_cancel_exit(void)
{
    return 128 + (cancel_signal ? cancel_signal : SIGINT);
}

/* ---- input and output ---- */

const char *cli_input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

bool cli_read_input(const char *path, char **data, size_t *n_bytes)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f) {
        file_failed("open", path);
        return false;
    }
    char *p = NULL;
    size_t n = 0, capacity = 0;
    for (;;) {
        if (capacity - n < 65536 + 1) {
            char *q = realloc(p, capacity = capacity * 2 + 131072);
            if (!q) {
                cli_failf("%s: no memory for %zu bytes", cli_input_name(path), capacity);
                goto fail;
            }
            p = q;
        }
        errno = 0;
        size_t got = fread(p + n, 1, 65536, f);
        n += got;
        if (got == 0) break;
    }
    if (ferror(f)) {
        file_failed("read", cli_input_name(path));
        goto fail;
    }
    if (f != stdin) fclose(f);
    p[n] = '\0';
    *data = p;
    *n_bytes = n;
    return true;
fail:
    if (f != stdin) fclose(f);
    free(p);
    return false;
}

bool cli_read_ids(const char *path, calla_tokens *tokens)
{
    char *text;
    size_t n_bytes;
    if (!cli_read_input(path, &text, &n_bytes)) return false;
    int32_t *ids = malloc((n_bytes / 2 + 1) * sizeof *ids);
    int64_t n = 0;
    char *p = text + strspn(text, " \t\r\n");
    while (ids && p < text + n_bytes) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        size_t gap = strspn(end, " \t\r\n");
        if (end == p || errno || id < 0 || id > INT32_MAX || (gap == 0 && end < text + n_bytes)) {
            cli_failf("%s: byte %td: '%.*s' is not a token id", cli_input_name(path), p - text,
                      (int)strcspn(p, " \t\r\n") > 20 ? 20 : (int)strcspn(p, " \t\r\n"), p);
            free(ids);
            free(text);
            return false;
        }
        ids[n++] = (int32_t)id;
        p = end + gap;
    }
    free(text);
    if (!ids) {
        cli_failf("%s: no memory for its ids", cli_input_name(path));
        return false;
    }
    *tokens = (calla_tokens){ids, n};
    return true;
}

static void note_write_error(void)
{
    if (errno == EPIPE)
        reader_gone = true;
    else if (!output_failed) {
        output_failed = true;
        file_failed("write to", "standard output");
    }
}

bool cli_write(const char *data, size_t n_bytes)
{
    if (output_failed || reader_gone) return false;
    if (fwrite(data, 1, n_bytes, stdout) != n_bytes || fflush(stdout) != 0) note_write_error();
    return !output_failed && !reader_gone;
}

int cli_finish(int code)
{
    cli_progress_end();
    if (!output_failed && !reader_gone && fflush(stdout) != 0) note_write_error();
    if (interrupted) return cli_cancel_exit();
    return output_failed && code == EXIT_OK ? EXIT_FAILED : code;
}

/* ---- output files ---- */

bool cli_output_open(cli_output *out, const char *path)
{
    *out = (cli_output){.path = path};
    struct stat st;
    if (!*path) {
        cli_failf("the name of the output file is empty");
        return false;
    }
    if (strcmp(path, "-") == 0) {
        out->file = stdout;
    } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        out->file = fopen(path, "wb");
    } else {
        if (asprintf(&out->temporary, "%s.XXXXXX", path) < 0) {
            out->temporary = NULL;
            cli_failf("%s: no memory for a path", path);
            return false;
        }
        int fd = mkstemp(out->temporary);
        mode_t mask = umask(0);
        umask(mask);
        if (fd >= 0) fchmod(fd, 0666 & ~mask);
        out->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    }
    if (out->file) return true;
    file_failed("create", path);
    free(out->temporary);
    out->temporary = NULL;
    return false;
}

bool cli_output_write(cli_output *out, const void *data, size_t n_bytes)
{
    if (out->file == stdout) return cli_write(data, n_bytes);
    if (fwrite(data, 1, n_bytes, out->file) == n_bytes) return true;
    file_failed("write to", out->path);
    return false;
}

void cli_output_abort(cli_output *out)
{
    if (out->file && out->file != stdout) fclose(out->file);
    if (out->temporary) unlink(out->temporary);
    free(out->temporary);
    *out = (cli_output){0};
}

bool cli_output_commit(cli_output *out)
{
    bool ok = true;
    if (out->file != stdout) {
        ok = fflush(out->file) == 0 && (!out->temporary || fsync(fileno(out->file)) == 0);
        ok = fclose(out->file) == 0 && ok;
        out->file = NULL;
        if (ok && out->temporary) ok = rename(out->temporary, out->path) == 0;
        if (!ok) file_failed("write", out->path);
    }
    if (ok) { /* nothing to remove */
        free(out->temporary);
        out->temporary = NULL;
    }
    cli_output_abort(out);
    return ok;
}

/* ---- progress ---- */

void cli_progress(const char *phase, int64_t done, int64_t total)
{
    static int64_t last_ms;
    if (!isatty(STDERR_FILENO)) return;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now_ms = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    if (progress_shown && done < total && now_ms - last_ms < 100) return;
    last_ms = now_ms;
    progress_shown = true;
    double share = total > 0 ? (double)done / (double)total : 0;
    int filled = (int)(share * 30);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f %%", phase, filled, "##############################",
            30 - filled, "", share * 100);
    fflush(stderr);
}

void cli_progress_end(void)
{
    if (!progress_shown) return;
    progress_shown = false;
    fprintf(stderr, "\r\033[K");
}
