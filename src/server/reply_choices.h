/* Answers that are choices, those of chat and of text completions: {"choices": [...], "usage"}, or
 * a stream of chunks of the same form. */
#ifndef CALLA_SERVER_REPLY_CHOICES_H
#define CALLA_SERVER_REPLY_CHOICES_H

#include "server/reply.h"

/* One choice of the answer: all of it so far (not streamed), or what the current chunk will carry.
 */
typedef struct reply_choice {
    strbuf reasoning, content;
    strbuf calls;    /* JSON of the tool calls, without the brackets */
    strbuf logprobs; /* JSON of the tokens, without the brackets */
    strbuf extra[3]; /* text completions: further lists of the log-probabilities */
    int32_t n_calls;
    size_t n_characters;    /* text completions: of text before the next token */
    calla_utf8_stream utf8; /* its beginning, if it is in the middle of one */
    bool call_open;         /* whole answers: the last call's arguments are still coming */
    const char *finish;     /* static storage, or NULL */
} reply_choice;

/* What the two have of their own. */
typedef struct choices_format {
    const char *object, *chunk_object;
    const char *head; /* JSON before the choices, with a comma behind, or "" */
    void (*add)(reply *r, reply_choice *c, const event *e, const char *text);
    /* Streamed: writes what was taken in of choice number i, if anything, as chunks. */
    void (*flush)(reply *r, int32_t i);
    /* Not streamed: writes the "choices" element number i. */
    void (*write_choice)(reply *r, int32_t i);
} choices_format;

/* The members of reply_format; a format's start calls choices_start first. */
bool choices_start(reply *r, const choices_format *format);
void choices_free(reply *r);
void choices_add(reply *r, int32_t choice, const event *e, const char *text);
void choices_finish(reply *r, int32_t choice, const char *reason);
void choices_flush(reply *r, int32_t choice);
void choices_progress(reply *r, int64_t done, int64_t total);
void choices_end_stream(reply *r);
void choices_write_whole(reply *r);
size_t choices_n_held(const reply *r);

reply_choice *choices_get(const reply *r, int32_t i);
/* "data: " and what all chunks begin with, up to the choices' bracket; and the end of a chunk, with
 * usage and timings where they belong. */
void choices_begin_chunk(reply *r);
void choices_end_chunk(reply *r, bool last);
/* "finish_reason": ... */
void choices_put_finish(strbuf *out, const char *finish);

#endif
