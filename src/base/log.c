#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void log_warn(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "calla: warning: %s\n", line); /* one call, so that lines do not mix */
}
