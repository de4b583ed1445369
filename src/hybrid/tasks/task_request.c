#include "hybrid/tasks/task_request.h"

#include <stdio.h>
#include <string.h>

#define MAX_TOKENS ((int64_t)1 << 40)
#define MAX_COST   1e9

/* Reads the value of one field into the request or a part of it. `where` is the field's path. */
typedef calla_status read_fn(const json_t *value, const char *where, void *into, calla_error *err);
typedef struct known_field {
    const char *name; /* NULL ends a list */
    read_fn *read;
} known_field;

static calla_status refuse(calla_error *err, const char *where, const char *wanted,
                           const json_t *value)
{
    return error_set(err, CALLA_ERR_INPUT, "%s: must be %s, not %s", where, wanted,
                     json_kind_name(value));
}

static const known_field *find_field(const known_field *fields, const char *name)
{
    for (; fields->name; fields++)
        if (strcmp(fields->name, name) == 0) return fields;
    return NULL;
}

/* `place`: what stands before the names of the object's fields, as "policy.". */
static calla_status read_fields(const json_t *object, const char *place, const known_field *fields,
                                void *into, calla_error *err)
{
    json_t *o = (json_t *)object; /* jansson's iterators want it so */
    char where[128];
    for (void *i = json_object_iter(o); i; i = json_object_iter_next(o, i)) {
        const known_field *f = find_field(fields, json_object_iter_key(i));
        const json_t *value = json_object_iter_value(i);
        snprintf(where, sizeof where, "%s%.64s", place, json_object_iter_key(i));
        if (!f) return error_set(err, CALLA_ERR_INPUT, "%s: there is no such field", where);
        if (!json_is_null(value)) CALLA_TRY(f->read(value, where, into, err));
    }
    return CALLA_OK;
}

/* A string without NUL; *n_bytes may be NULL. */
static calla_status read_text(const json_t *value, const char *where, const char **text,
                              size_t *n_bytes, calla_error *err)
{
    if (!json_is_string(value)) return refuse(err, where, "a string", value);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return error_set(err, CALLA_ERR_INPUT, "%s: must not contain a NUL character", where);
    *text = json_string_value(value);
    if (n_bytes) *n_bytes = json_string_length(value);
    return CALLA_OK;
}

calla_status task_read_instructions(const json_t *value, const char *field, const char **text,
                                    calla_error *err)
{
    size_t n = 0;
    if (!value || json_is_null(value))
        return error_set(err, CALLA_ERR_INPUT, "%s: is missing", field);
    CALLA_TRY(read_text(value, field, text, &n, err));
    if (n == 0 || n > TASK_MAX_INSTRUCTION_BYTES)
        return error_set(err, CALLA_ERR_INPUT, "%s: %zu bytes, 1 to %d are possible", field, n,
                         TASK_MAX_INSTRUCTION_BYTES);
    return CALLA_OK;
}

/* ---- policy ---- */

static calla_status read_cloud(const json_t *value, const char *where, void *into, calla_error *err)
{
    if (!json_is_boolean(value)) return refuse(err, where, "true or false", value);
    ((task_rules *)into)->may_use_cloud = json_is_true(value);
    return CALLA_OK;
}

static calla_status read_on_ask(const json_t *value, const char *where, void *into,
                                calla_error *err)
{
    bool waits = json_is_text(value, "wait");
    if (!waits && !json_is_text(value, "keep_local"))
        return error_set(err, CALLA_ERR_INPUT, "%s: must be wait or keep_local", where);
    ((task_rules *)into)->waits = waits;
    return CALLA_OK;
}

static calla_status read_action(const json_t *value, const char *where, policy_action *action,
                                calla_error *err)
{
    for (int a = 0; a < POLICY_N_ACTIONS; a++) {
        if (!json_is_text(value, policy_action_name((policy_action)a))) continue;
        *action = (policy_action)a;
        return CALLA_OK;
    }
    return error_set(err, CALLA_ERR_INPUT, "%s: must be allow, redact, ask or keep_local", where);
}

static void raise_to(policy_action *action, policy_action at_least)
{
    if (at_least > *action) *action = at_least;
}

static calla_status read_categories(const json_t *value, const char *where, void *into,
                                    calla_error *err)
{
    task_rules *rules = into;
    json_t *o = (json_t *)value;
    char here[160];
    if (!json_is_mapping(value)) return refuse(err, where, "an object", value);
    for (void *i = json_object_iter(o); i; i = json_object_iter_next(o, i)) {
        const char *name = json_object_iter_key(i);
        policy_action action = POLICY_ALLOW;
        detect_category category;
        detect_class class_;
        snprintf(here, sizeof here, "%s.%.64s", where, name);
        CALLA_TRY(read_action(json_object_iter_value(i), here, &action, err));
        if (detect_category_of_name(name, &category)) {
            raise_to(&rules->at_least[category], action);
        } else if (detect_class_of_name(name, &class_)) {
            for (int c = 0; c < DETECT_N_CATEGORIES; c++)
                if (detect_category_class((detect_category)c) == class_)
                    raise_to(&rules->at_least[c], action);
        } else {
            return error_set(err, CALLA_ERR_INPUT, "%s: there is no such category", here);
        }
    }
    return CALLA_OK;
}

calla_status task_rules_read(const json_t *object, task_rules *rules, calla_error *err)
{
    static const known_field fields[] = {
        {"cloud", read_cloud}, {"on_ask", read_on_ask}, {"categories", read_categories}, {0}};
    *rules = (task_rules){.may_use_cloud = true, .waits = true};
    if (!object || json_is_null(object)) return CALLA_OK;
    if (!json_is_mapping(object)) return refuse(err, "policy", "an object", object);
    return read_fields(object, "policy.", fields, rules, err);
}

/* ---- budget ---- */

static calla_status read_tokens(const json_t *value, const char *where, void *into,
                                calla_error *err)
{
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 1 || n > MAX_TOKENS)
        return error_set(err, CALLA_ERR_INPUT, "%s: must be a whole number from 1 to %lld", where,
                         (long long)MAX_TOKENS);
    ((task_budget *)into)->tokens = n;
    return CALLA_OK;
}

static calla_status read_cost(const json_t *value, const char *where, void *into, calla_error *err)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= 0 && x <= MAX_COST))
        return error_set(err, CALLA_ERR_INPUT, "%s: must be a number from 0 to %g", where,
                         MAX_COST);
    ((task_budget *)into)->cost = x;
    return CALLA_OK;
}

static calla_status read_currency(const json_t *value, const char *where, void *into,
                                  calla_error *err)
{
    return read_text(value, where, &((task_budget *)into)->currency, NULL, err);
}

calla_status task_budget_read(const json_t *object, task_budget *b, calla_error *err)
{
    static const known_field fields[] = {
        {"tokens", read_tokens}, {"cost", read_cost}, {"currency", read_currency}, {0}};
    *b = (task_budget){.tokens = -1, .cost = -1};
    if (!object || json_is_null(object)) return CALLA_OK;
    if (!json_is_mapping(object)) return refuse(err, "budget", "an object", object);
    return read_fields(object, "budget.", fields, b, err);
}

/* ---- the whole ---- */

static calla_status take_instructions(const json_t *value, const char *where, void *into,
                                      calla_error *err)
{
    return task_read_instructions(value, where, &((task_request *)into)->instructions, err);
}

static calla_status add_input(task_request *r, const char *where, const json_t *name,
                              const json_t *text, calla_error *err)
{
    char here[160];
    size_t n_name = 0, i = r->n_inputs;
    if (i == TASK_MAX_INPUTS)
        return error_set(err, CALLA_ERR_INPUT, "%s: more than %d texts and files", where,
                         TASK_MAX_INPUTS);
    r->inputs[i].name = "";
    if (name) {
        snprintf(here, sizeof here, "%s.name", where);
        CALLA_TRY(read_text(name, here, &r->inputs[i].name, &n_name, err));
        if (n_name > TASK_MAX_NAME_BYTES)
            return error_set(err, CALLA_ERR_INPUT, "%s: longer than %d bytes", here,
                             TASK_MAX_NAME_BYTES);
    }
    snprintf(here, sizeof here, "%s%s", where, name ? ".text" : "");
    CALLA_TRY(read_text(text, here, &r->inputs[i].text, &r->inputs[i].n_bytes, err));
    r->n_inputs++;
    return CALLA_OK;
}

/* An array of texts. */
static calla_status take_texts(const json_t *value, const char *where, void *into, calla_error *err)
{
    char here[96];
    if (!json_is_array(value)) return refuse(err, where, "an array", value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        snprintf(here, sizeof here, "%s[%zu]", where, i);
        CALLA_TRY(add_input(into, here, NULL, json_array_get(value, i), err));
    }
    return CALLA_OK;
}

/* An array of {"name", "text"}: the texts of files; the server opens none. */
static calla_status take_files(const json_t *value, const char *where, void *into, calla_error *err)
{
    char here[96];
    if (!json_is_array(value)) return refuse(err, where, "an array", value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *file = json_array_get(value, i);
        const json_t *name = json_object_get(file, "name"), *text = json_object_get(file, "text");
        snprintf(here, sizeof here, "%s[%zu]", where, i);
        if (!json_is_mapping(file) || json_object_size(file) != 2 || !name || !text)
            return error_set(err, CALLA_ERR_INPUT,
                             "%s: must be an object with name and text and no more", here);
        CALLA_TRY(add_input(into, here, name, text, err));
    }
    return CALLA_OK;
}

static calla_status take_policy(const json_t *value, const char *where, void *into,
                                calla_error *err)
{
    task_rules rules;
    (void)where;
    ((task_request *)into)->policy = value;
    return task_rules_read(value, &rules, err);
}

static calla_status take_budget(const json_t *value, const char *where, void *into,
                                calla_error *err)
{
    task_budget budget;
    (void)where;
    ((task_request *)into)->budget = value;
    return task_budget_read(value, &budget, err);
}

static calla_status take_priority(const json_t *value, const char *where, void *into,
                                  calla_error *err)
{
    int64_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < -TASK_MAX_PRIORITY || n > TASK_MAX_PRIORITY)
        return error_set(err, CALLA_ERR_INPUT, "%s: must be a whole number from %d to %d", where,
                         -TASK_MAX_PRIORITY, TASK_MAX_PRIORITY);
    ((task_request *)into)->priority = n;
    return CALLA_OK;
}

static calla_status take_paused(const json_t *value, const char *where, void *into,
                                calla_error *err)
{
    if (!json_is_boolean(value)) return refuse(err, where, "true or false", value);
    ((task_request *)into)->paused = json_is_true(value);
    return CALLA_OK;
}

calla_status task_request_read(const json_t *body, task_request *r, calla_error *err)
{
    static const known_field fields[] = {
        {"instructions", take_instructions},
        {"texts", take_texts},
        {"files", take_files},
        {"policy", take_policy},
        {"budget", take_budget},
        {"priority", take_priority},
        {"paused", take_paused},
        {0},
    };
    *r = (task_request){0};
    if (!json_is_mapping(body)) return refuse(err, "task", "an object", body);
    CALLA_TRY(read_fields(body, "", fields, r, err));
    if (!r->instructions) return error_set(err, CALLA_ERR_INPUT, "instructions: is missing");
    return CALLA_OK;
}
