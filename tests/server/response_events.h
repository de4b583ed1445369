/* Streams of /v1/responses, held to their rules. */
#ifndef CALLA_TESTS_SERVER_RESPONSE_EVENTS_H
#define CALLA_TESTS_SERVER_RESPONSE_EVENTS_H

#include <jansson.h>

/* The events of a stream, as an array. Each must be the one that may come next; pieces, wholes and
 * the last event's response must say the same. */
json_t *response_events(const char *text);
/* The response of the last event, borrowed; its type is "response." and `status`. */
json_t *response_of(const json_t *events, const char *status);
/* Takes out of a response what no two have in common: ids and times. */
void response_make_plain(json_t *response);

/* The text of all messages of a response, and of all its reasoning (malloc'ed). */
char *response_text(const json_t *response);
char *response_reasoning(const json_t *response);
/* Its call number i, borrowed; or NULL. */
json_t *response_call(const json_t *response, size_t i);

#endif
