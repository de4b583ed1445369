/* Names nobody else has, and seeds. */
#ifndef CALLA_SERVER_IDS_H
#define CALLA_SERVER_IDS_H

#include <stddef.h>
#include <stdint.h>

/* prefix and 24 random letters and digits into text [n_text], which has room for them. */
void id_make(const char *prefix, char *text, size_t n_text);
/* 53 bits, so that it survives as a JSON number in any reader. */
uint64_t random_seed(void);

#endif
