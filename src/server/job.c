#include "server/job.h"

#include <stdlib.h>

job *job_create(calla_error *err)
{
    job *j = calloc(1, sizeof *j);
    if (!j) {
        error_set(err, CALLA_ERR_MEMORY, "no memory for a request");
        return NULL;
    }
    if (outbox_init(&j->out, err) != CALLA_OK) {
        free(j);
        return NULL;
    }
    return j;
}

void job_request_deinit(job_request *r)
{
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->ignored_tools);
    free(r->logit_bias);
    grammar_free(r->grammar);
    grammar_free(r->calls);
}

void job_free(job *j)
{
    if (!j) return;
    for (int32_t i = 0; i < j->n_prompts; i++) {
        calla_prompt_free(&j->prompts[i].rendered);
        calla_tokens_free(&j->prompts[i].tokens);
    }
    free(j->prompts);
    free(j->context);
    job_request_deinit(&j->request);
    json_decref(j->request.body);
    outbox_deinit(&j->out);
    free(j);
}
