#include "server/submit.h"

#include "server/ids.h"

reply *submit_request(server *s, json_t *body, const char *note, const reply_format *format,
                      submit_read_fn *read, api_error *e)
{
    calla_error err;
    job *j = job_create(&err);
    if (!j) {
        api_fail_status(e, &err);
        return NULL;
    }
    j->request.body = json_incref(body);
    j->request.note = note;
    id_make(format->id_prefix, j->id, sizeof j->id);
    bool ok = read(body, &s->defaults, &j->request, e);
    if (ok && j->request.chat) ok = prepare_chat(j, &s->defaults, s->replay, e);
    if (ok && !j->request.chat) ok = prepare_completion(j, &s->defaults, e);
    size_t max_bytes = (size_t)s->options.max_answer_bytes;
    reply *a = ok ? reply_create(format, &s->vocabulary, s->name, max_bytes, j) : NULL;
    if (ok && !a) api_fail(e, 500, NULL, NULL, "no memory for the answer");
    if (!a) {
        job_free(j);
        return NULL;
    }
    if (scheduler_submit(s->scheduler, j, e)) return a;
    a->closed = true; /* it was never begun */
    reply_free(a);
    return NULL;
}
