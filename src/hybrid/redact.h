/* Values out, placeholders in, and back.
 *
 * A redaction map belongs to one conversation. It gives each value a placeholder such as [EMAIL_1],
 * the same one for the same value (detect_normalise) as long as the map lives, so that a history
 * sent again reads the same. A text that holds something like a placeholder already loses it to one
 * of its own ([TEXT_1]), so restoring never confuses the two.
 *
 * The map lives in memory only and is wiped when it is freed. It may be used by several threads. */
#ifndef CALLA_HYBRID_REDACT_H
#define CALLA_HYBRID_REDACT_H

#include "hybrid/detect/detect.h"

typedef struct redaction_map redaction_map;

calla_status redaction_map_create(redaction_map **map, calla_error *err);
void redaction_map_free(redaction_map *map);
/* How many values it holds. */
size_t redaction_map_size(redaction_map *map);

/* Appends text [n_bytes] to `out` with the ranges of findings [n_findings] (ordered, not
 * overlapping, as detect_scan gives them) replaced, and whatever looks like a placeholder too. With
 * no findings it does only the latter, which every text that is sent needs. On an error nothing is
 * appended. */
calla_status redact_text(redaction_map *map, const char *text, size_t n_bytes,
                         const finding *findings, size_t n_findings, strbuf *out, calla_error *err);

/* How a text holds the placeholders, and so how values are written into it. */
typedef enum restore_form {
    RESTORE_TEXT, /* as they are */
    RESTORE_JSON, /* JSON's text, in whose strings the placeholders are: values are escaped */
} restore_form;

/* Puts values back into a text that comes in pieces. What it appends does not depend on how the
 * text was cut. Only what may be the beginning of a placeholder waits for the next piece. Taken for
 * a placeholder, too: small letters, and Markdown's escapes (\[EMAIL\_1\]); not: one that the map
 * did not give out, or what is beyond 64 MiB of values together. The map must outlive it. */
typedef struct restorer restorer;
calla_status restorer_create(redaction_map *map, restore_form form, restorer **r, calla_error *err);
void restorer_free(restorer *r);
/* Appends to `out`; `finish` what still waited. Its memory failing shows in `out`. */
void restorer_push(restorer *r, const char *piece, size_t n_bytes, strbuf *out);
void restorer_finish(restorer *r, strbuf *out);
/* Of a whole text. */
void restore_text(redaction_map *map, restore_form form, const char *text, size_t n_bytes,
                  strbuf *out);

#endif
