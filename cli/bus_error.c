/* A checkpoint is read through maps. Where a file has become shorter than its map, or the disk
 * fails, a read is no error but the signal SIGBUS: it ends the program with a line that names the
 * file. */
#include "cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* Everything here runs in a signal handler: system calls and static memory only. */

static const char *command_name;
static char maps[1 << 18];

static void put(const char *text, size_t n_bytes)
{
    if (write(STDERR_FILENO, text, n_bytes) < 0) return; /* nobody is left to tell */
}

static const char *parse_hex(const char *p, uintptr_t *value)
{
    static const char digits[] = "0123456789abcdef";
    *value = 0;
    for (const char *d; *p && (d = strchr(digits, *p)); p++)
        *value = *value << 4 | (uintptr_t)(d - digits);
    return p;
}

/* The file mapped at `address`, as /proc/self/maps has it, or NULL. */
static char *find_file(uintptr_t address)
{
    size_t n = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got = 1; fd >= 0 && got > 0 && n<sizeof maps - 1; n += got> 0 ? (size_t)got : 0)
        got = read(fd, maps + n, sizeof maps - 1 - n);
    maps[n] = '\0';
    for (char *line = maps, *end; (end = strchr(line, '\n')); line = end + 1) {
        uintptr_t first, last;
        *end = '\0';
        const char *p = parse_hex(line, &first);
        if (*p == '-') parse_hex(p + 1, &last);
        if (*p == '-' && address >= first && address < last) return strchr(line, '/');
    }
    return NULL;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    /* Threads that compute fault together, and there is one buffer: the first one speaks and ends
     * the program. */
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    (void)context;
    while (atomic_flag_test_and_set(&taken)) pause();
    char *file = find_file((uintptr_t)info->si_addr);
    if (!file) { /* not a file's fault: as if there were no handler */
        signal(number, SIG_DFL);
        return;
    }
    for (char *c = file; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    static const char end[] =
        ": cannot be read any more: was it truncated, or does the disk fail?\n";
    if (isatty(STDERR_FILENO)) put("\r\033[K", 4); /* instead of a progress line */
    put("calla ", 6);
    put(command_name, strlen(command_name));
    put(": ", 2);
    put(file, strlen(file));
    put(end, sizeof end - 1);
    _exit(EXIT_FAILED);
}

void cli_report_bus_errors(const char *command)
{
    command_name = command;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
