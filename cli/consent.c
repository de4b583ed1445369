#include "consent.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(const json_t *found, const char *key)
{
    const char *text = json_string_value(json_object_get(found, key));
    return text ? text : "";
}

/* Without what could rule the terminal: excerpts and places come from the text that was looked at.
 */
static void put_text(FILE *terminal, const char *text)
{
    calla_error tidied;
    error_set(&tidied, CALLA_ERR_INPUT, "%s", text);
    fputs(tidied.message, terminal);
}

static void put_finding(FILE *terminal, const json_t *found)
{
    fprintf(terminal, "  %-16s ", text_of(found, "category"));
    put_text(terminal, text_of(found, "excerpt"));
    fputs("  (", terminal);
    put_text(terminal, text_of(found, "where"));
    fprintf(terminal, ")%s\n", strcmp(text_of(found, "action"), "redact") == 0 ? "  replaced" : "");
}

cli_consent cli_ask_consent(const char *destination, const json_t *findings)
{
    char answer[16] = "";
    FILE *terminal = fopen("/dev/tty", "r+");
    if (!terminal) return CLI_CONSENT_UNASKED;
    fputs("This would leave for ", terminal);
    put_text(terminal, destination);
    fputs(":\n", terminal);
    for (size_t i = 0; i < json_array_size(findings); i++)
        put_finding(terminal, json_array_get(findings, i));
    fprintf(terminal, "Send it? [y/N] ");
    fflush(terminal);
    bool yes = fgets(answer, sizeof answer, terminal) && (answer[0] == 'y' || answer[0] == 'Y');
    fclose(terminal);
    return yes ? CLI_CONSENT_GIVEN : CLI_CONSENT_REFUSED;
}
