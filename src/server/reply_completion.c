/* text_completion. */
#include "server/reply_choices.h"

#include <string.h>

/* The lists of the log-probabilities. */
enum { LIST_LOGPROBS, LIST_TOP, LIST_OFFSETS };

static size_t count_characters(const calla_text *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->n_bytes; i++) n += ((unsigned char)text->data[i] & 0xc0) != 0x80;
    return n;
}

/* The token's text as JSON string; of one that is no whole characters its bytes, "bytes:\xe2\x82",
 * so that different tokens have different names. */
static void put_token(const reply *r, strbuf *out, int32_t token)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->vocabulary->tokenizer, token, &n_bytes);
    json_t *whole = json_stringn(bytes, n_bytes);
    if (whole) {
        json_write_string(out, bytes, n_bytes);
    } else {
        strbuf_puts(out, "\"bytes:");
        for (size_t i = 0; i < n_bytes; i++)
            strbuf_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
        strbuf_putc(out, '"');
    }
    json_decref(whole);
}

static void add_offset(const reply *r, reply_choice *c, int32_t token)
{
    size_t n_bytes;
    const char *bytes = calla_tokenizer_bytes(r->vocabulary->tokenizer, token, &n_bytes);
    calla_text whole;
    strbuf_printf(&c->extra[LIST_OFFSETS], "%s%zu", c->extra[LIST_OFFSETS].n > 0 ? ", " : "",
                  c->n_characters);
    if (calla_utf8_stream_push(&c->utf8, bytes, n_bytes, &whole, NULL) != CALLA_OK) {
        c->extra[LIST_OFFSETS].failed = true;
        return;
    }
    c->n_characters += count_characters(&whole);
    calla_text_free(&whole);
}

static void add_token(reply *r, reply_choice *c, const calla_sampled *s)
{
    const char *comma = c->logprobs.n > 0 ? ", " : "";
    strbuf_puts(&c->logprobs, comma);
    put_token(r, &c->logprobs, s->token);
    strbuf_puts(&c->extra[LIST_LOGPROBS], comma);
    json_write_real(&c->extra[LIST_LOGPROBS], (double)s->logprob);
    strbuf *top = &c->extra[LIST_TOP];
    strbuf_printf(top, "%s{", comma);
    for (int32_t i = 0; i < s->n_top; i++) {
        if (i > 0) strbuf_puts(top, ", ");
        put_token(r, top, s->top_tokens[i]);
        strbuf_puts(top, ": ");
        json_write_real(top, (double)s->top_logprobs[i]);
    }
    strbuf_putc(top, '}');
    add_offset(r, c, s->token);
}

static void add(reply *r, reply_choice *c, const event *e, const char *text)
{
    if (e->kind == EVENT_CONTENT) strbuf_append(&c->content, text, e->n_bytes);
    if (e->kind == EVENT_TOKEN) add_token(r, c, &r->batch.tokens[e->a]);
}

static void put_choice(reply *r, int32_t i, const char *finish)
{
    reply_choice *c = choices_get(r, i);
    strbuf *out = &r->out;
    strbuf_puts(out, "{\"text\": ");
    reply_put_string(out, &c->content);
    strbuf_printf(out, ", \"index\": %d, \"logprobs\": ", i);
    if (c->logprobs.n > 0)
        strbuf_printf(out,
                      "{\"tokens\": [%s], \"token_logprobs\": [%s], \"top_logprobs\": [%s], "
                      "\"text_offset\": [%s]}",
                      c->logprobs.data, c->extra[LIST_LOGPROBS].data, c->extra[LIST_TOP].data,
                      c->extra[LIST_OFFSETS].data);
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ", ");
    choices_put_finish(out, finish);
    strbuf_putc(out, '}');
}

static void flush(reply *r, int32_t i)
{
    reply_choice *c = choices_get(r, i);
    if (c->content.n + c->logprobs.n == 0 && !c->finish) return;
    choices_begin_chunk(r);
    put_choice(r, i, c->finish);
    choices_end_chunk(r, c->finish && r->n_finished == job_n_choices(r->job));
    strbuf_clear(&c->content);
    strbuf_clear(&c->logprobs);
    for (size_t k = 0; k < sizeof c->extra / sizeof *c->extra; k++) strbuf_clear(&c->extra[k]);
    c->finish = NULL;
}

static void write_choice(reply *r, int32_t i)
{
    put_choice(r, i, choices_get(r, i)->finish);
}

static const choices_format format = {
    .object = "text_completion",
    .chunk_object = "text_completion",
    .head = "",
    .add = add,
    .flush = flush,
    .write_choice = write_choice,
};

/* With echo, each choice begins with its prompt. */
static bool start(reply *r)
{
    const job_request *request = &r->job->request;
    if (!choices_start(r, &format)) return false;
    for (int32_t i = 0; request->echo && i < job_n_choices(r->job); i++) {
        const calla_tokens *tokens = &r->job->prompts[i / request->n].tokens;
        calla_text text;
        if (calla_tokenizer_decode(r->vocabulary->tokenizer, tokens->ids, tokens->n, false, &text,
                                   NULL) != CALLA_OK) {
            choices_free(r);
            return false;
        }
        reply_choice *c = choices_get(r, i);
        strbuf_append(&c->content, text.data, text.n_bytes);
        c->n_characters = count_characters(&text);
        calla_text_free(&text);
    }
    return true;
}

const reply_format reply_completion = {
    .id_prefix = "cmpl-",
    .start = start,
    .free_state = choices_free,
    .add = choices_add,
    .finish = choices_finish,
    .flush = choices_flush,
    .progress = choices_progress,
    .end_stream = choices_end_stream,
    .write_whole = choices_write_whole,
    .n_held = choices_n_held,
};
