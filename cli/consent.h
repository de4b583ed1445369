/* Asking on the terminal whether something may leave. */
#ifndef CALLA_CLI_CONSENT_H
#define CALLA_CLI_CONSENT_H

#include "cli.h"

#include <jansson.h>

typedef enum cli_consent {
    CLI_CONSENT_GIVEN,
    CLI_CONSENT_REFUSED,
    CLI_CONSENT_UNASKED, /* there is no terminal */
} cli_consent;

/* Shows the findings ([{"category", "excerpt", "where", "action"} ...]) and takes a yes or no. */
cli_consent cli_ask_consent(const char *destination, const json_t *findings);

#endif
