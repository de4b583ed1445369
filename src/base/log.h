/* Warnings of the library: one line each to stderr, prefixed "calla: ". Results never go here. */
#ifndef CALLA_BASE_LOG_H
#define CALLA_BASE_LOG_H

void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
