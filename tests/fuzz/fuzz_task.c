/* Bodies of tasks and plans from arbitrary bytes: refused with a message, or within their bounds; a
 * step reads only what is there before it. */
#include "hybrid/tasks/task_plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_request(const json_t *body)
{
    task_request r;
    task_rules rules;
    task_budget budget;
    calla_error err = {0};
    calla_status status = task_request_read(body, &r, &err);
    if (status != CALLA_OK) {
        if (status != CALLA_ERR_INPUT || !strchr(err.message, ':')) abort();
        return;
    }
    if (r.n_inputs > TASK_MAX_INPUTS || llabs(r.priority) > TASK_MAX_PRIORITY) abort();
    for (size_t i = 0; i < r.n_inputs; i++)
        if (strlen(r.inputs[i].text) != r.inputs[i].n_bytes) abort();
    if (task_rules_read(r.policy, &rules, &err) != CALLA_OK ||
        task_budget_read(r.budget, &budget, &err) != CALLA_OK)
        abort(); /* they were good before */
    for (int c = 0; c < DETECT_N_CATEGORIES; c++)
        if (rules.at_least[c] > POLICY_KEEP_LOCAL) abort();
}

static void check_plan(const char *data, size_t n)
{
    char label[] = "input_1", text[] = "x", name[] = "";
    task_input input = {.label = label, .name = name, .text = text, .n_bytes = 1};
    const task_work w = {.inputs = &input, .n_inputs = 1, .asked = text};
    task_plan p;
    calla_error err = {0};
    calla_status status = task_plan_read(&w, data, n, &p, &err);
    if (status == CALLA_OK && (p.n_steps < 1 || p.n_steps > TASK_MAX_STEPS)) abort();
    for (size_t i = 0; status == CALLA_OK && i < p.n_steps; i++)
        for (size_t k = 0; k < json_array_size(p.steps[i].inputs); k++) {
            const char *read = json_string_value(json_array_get(p.steps[i].inputs, k));
            if (strcmp(read, label) != 0 && (size_t)atoi(read + strlen("step_")) > i) abort();
        }
    task_plan_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *body = NULL;
    if (json_parse_unique((const char *)data, n, "request", &body, NULL) == CALLA_OK)
        check_request(body);
    json_decref(body);
    check_plan((const char *)data, n);
    return 0;
}
