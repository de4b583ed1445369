/* The inside of calla_chat_parser, shared by chat_parse.c (text) and chat_call.c (tool calls).
 *
 * Input is appended to a buffer. `at` is the next byte to look at, `start` the first that no event
 * has taken; between them lies what is held back because it may yet become (part of) a tag. The
 * state machine stops where it needs more input and goes on from there, so every byte is looked at
 * a bounded number of times and events do not depend on how the input was cut. */
#ifndef CALLA_MODEL_CHAT_PARSER_H
#define CALLA_MODEL_CHAT_PARSER_H

#include "model/chat.h"
#include "model/chat_value.h"

typedef enum parser_state {
    STATE_TEXT,        /* reasoning or content */
    STATE_CALL_OPEN,   /* after <tool_call>: whitespace, then <function= or it was text */
    STATE_CALL_NAME,   /* after <function= */
    STATE_FUNCTION,    /* between parameters */
    STATE_KEY,         /* after <parameter= */
    STATE_VALUE_START, /* after its > */
    STATE_VALUE,
    STATE_VALUE_END,     /* after what may be the value's end: what follows decides */
    STATE_AFTER_FUNCTION /* after </function> */
} parser_state;

typedef enum tag {
    TAG_THINK,
    TAG_THINK_END,
    TAG_CALL,
    TAG_CALL_END,
    TAG_FUNCTION,
    TAG_FUNCTION_END,
    TAG_PARAMETER,
    TAG_PARAMETER_END,
    N_TAGS
} tag;
#define TAG_BIT(t) (1u << (t))

struct calla_chat_parser {
    calla_chat_event_fn event;
    void *user;
    json_t *tools; /* a list, or NULL */
    bool no_calls, finished;
    calla_utf8_stream utf8;

    strbuf input;
    size_t start, at;
    parser_state state;

    /* Text. */
    size_t space;        /* whitespace [space, at) may be trimmed; start <= space */
    bool reasoning;      /* the text is reasoning */
    bool at_start;       /* no reasoning (content) so far */
    bool trim_start;     /* content begins after its newlines */
    bool may_think;      /* <think> may still open the reasoning */
    bool after_call;     /* nothing but whitespace since the last call */
    bool implicit_close; /* a call closed the reasoning: its </think> may come late */
    strbuf call_space;   /* whitespace around calls, dropped unless more content follows */

    /* A candidate for a call, then the call. */
    size_t tag_at, name_at; /* its first tag; the name (of function or parameter) */
    tag first_tag;          /* the one at tag_at */
    bool any_name;          /* the function need not be among the tools */
    int32_t n_calls;
    const json_t *tool; /* the function's declaration, or NULL */
    bool has_parameters;
    strbuf json; /* arguments, not yet passed on */

    /* A parameter's value. */
    size_t value_at;  /* where it began if nothing of it was consumed, else SIZE_MAX */
    size_t value_end; /* where it ends if the closing holds */
    size_t look;      /* what follows the closing */
    tag closing;
    value_guesser guesser;
    bool streaming; /* it is a string: passed on as it comes */
    strbuf value;   /* else collected here */
};

typedef enum match { MATCH_NO, MATCH_PART, MATCH_YES } match;

/* Which of the tags in the set `allowed` (TAG_BITs) stands at `offset`. MATCH_PART: the input ends
 * within one. */
match parser_match(const calla_chat_parser *p, size_t offset, unsigned allowed, tag *found);
size_t tag_length(tag t);
bool parser_is_space(char c);
/* The first byte from `offset` on that is not whitespace. */
size_t parser_skip_space(const calla_chat_parser *p, size_t offset);

void parser_emit(calla_chat_parser *p, calla_chat_event_kind kind, const char *text,
                 size_t n_bytes);
/* Passes on text up to `end`. */
void parser_emit_text(calla_chat_parser *p, size_t end);
/* Passes on the arguments collected. */
void parser_emit_json(calla_chat_parser *p);
/* Starts over with text at `offset`. */
void parser_enter_text(calla_chat_parser *p, size_t offset);

/* One step in a state other than STATE_TEXT; false when it needs more input. `final`: there is no
 * more. Then a tag that broke off counts as the closing it could have become. */
bool parser_step_call(calla_chat_parser *p, bool final);

#endif
