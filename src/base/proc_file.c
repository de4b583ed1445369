#include "base/proc_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool proc_file_text(const char *folder, const char *name, const char *key, char *text, size_t n)
{
    char path[4096], line[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n_key = key ? strlen(key) : 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        const char *p = line + n_key;
        if (key && (strncmp(line, key, n_key) != 0 || !strchr(" \t:", *p))) continue;
        if (key) p += strspn(p, " \t:");
        snprintf(text, n, "%.*s", (int)strcspn(p, "\n"), p);
        found = true;
    }
    fclose(f);
    return found;
}

int64_t proc_file_number(const char *folder, const char *name, const char *key)
{
    char text[64], *end;
    if (!proc_file_text(folder, name, key, text, sizeof text)) return -1;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return end == text || errno || value < 0 ? -1 : value;
}
