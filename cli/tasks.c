/* calla tasks: the tasks of a running `calla serve --tasks`. */
#include "tasks.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: calla tasks add -p TEXT [FILE ...] [OPTIONS]\n"
    "       calla tasks list | show ID | watch ID | result ID [OPTIONS]\n"
    "       calla tasks follow ID -p TEXT [OPTIONS]\n"
    "       calla tasks pause ID | resume ID | cancel ID | delete ID | priority ID --priority N\n"
    "\n"
    "Gives tasks to a running `calla serve --tasks FILE`, which divides each into steps, runs "
    "them\n"
    "here or in the cloud as its policy allows (docs/hybrid.md), and merges the results.\n";

static const char notes[] = "The key is taken from the environment. Files are read here and sent "
                            "as text; \"-\" is standard\n"
                            "input.\n";

/* ---- options ---- */

static bool take_category(void *where, const char *option, const char *text)
{
    tasks_args *a = where;
    if (a->n_keep == TASKS_MAX_CATEGORIES) {
        cli_usage_error("%s: more than %d", option, TASKS_MAX_CATEGORIES);
        return false;
    }
    a->keep[a->n_keep++] = text;
    return true;
}

static int parse_options(int argc, char **argv, tasks_args *a)
{
    const cli_option server[] = {
        {0, "url", "URL", cli_text(&a->url), "the server [http://127.0.0.1:8080]"},
        {0, "key-env", "VAR", cli_text(&a->key_env),
         "the environment's variable with its API key [CALLA_API_KEY]"},
        {0, "json", NULL, cli_true(&a->json), "print what the server answers, as JSON"},
        {0, "state", "NAME", cli_text(&a->state),
         "list: only those that are queued, running, done, failed or cancelled"},
        {0, "limit", "N", cli_int32(&a->limit, 1, 1000), "list: so many at most [100]"},
    };
    const cli_option task[] = {
        {'p', "prompt", "TEXT", cli_text(&a->instructions), "what is to be done"},
        {'f', "prompt-file", "FILE", cli_text(&a->instructions_file), "the same from a file"},
        {0, "local", NULL, cli_true(&a->local), "nothing of it leaves this machine"},
        {0, "keep", "CATEGORY", cli_other(take_category, a),
         "texts with this in them stay here, as email or finance (repeatable)"},
        {0, "tokens", "N", cli_int64(&a->tokens, 1, (int64_t)1 << 40),
         "all its steps may use so many tokens"},
        {0, "cost", "X", cli_real(&a->cost, 0, 1e9), "and cost so much in the cloud"},
        {0, "currency", "NAME", cli_text(&a->currency), "of --cost [that of the policy's price]"},
        {0, "priority", "N", cli_int32(&a->priority, -100, 100), "higher ones run first [0]"},
        {0, "paused", NULL, cli_true(&a->paused), "file it, but do not begin"},
        {0, "once", "NAME", cli_text(&a->idempotency_key),
         "the task's name of yours: sent again, it is not filed twice"},
        {0, "wait", NULL, cli_true(&a->wait), "wait for the result and print it"},
    };
    const cli_syntax syntax = {.usage = usage,
                               .notes = notes,
                               .groups = {CLI_GROUP("server", server), CLI_GROUP("task", task)},
                               .most_operands = 65};
    return cli_parse(argc, argv, &syntax, &a->operands, &a->n_operands);
}

/* ---- printing ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

/* A line of at most n characters, cut, without what could move a cursor. */
static void put_line(const char *text, int n)
{
    for (; *text && *text != '\n' && n > 0; text++) {
        bool begins = ((unsigned char)*text & 0xc0) != 0x80;
        if (begins && --n == 0) break;
        putchar((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
    }
    if (*text) fputs("...", stdout);
    putchar('\n');
}

static void print_json(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    if (text) puts(text);
    free(text);
}

static long long tokens_of(const json_t *task)
{
    const json_t *use = json_object_get(task, "usage");
    const json_t *here = json_object_get(use, "local"), *there = json_object_get(use, "cloud");
    return number_of(here, "input_tokens") + number_of(here, "output_tokens") +
           number_of(there, "input_tokens") + number_of(there, "output_tokens");
}

static void print_head(const json_t *task)
{
    const json_t *use = json_object_get(task, "usage");
    const char *currency = text_of(use, "currency");
    printf("%s  %-9s%s  %4lld  %8lld tokens", text_of(task, "id"), text_of(task, "state"),
           json_is_true(json_object_get(task, "paused")) ? " (paused)" : "",
           number_of(task, "priority"), tokens_of(task));
    if (*currency) {
        printf("  %.6f ", json_number_value(json_object_get(use, "cost")));
        for (; *currency; currency++) putchar((unsigned char)*currency < ' ' ? '?' : *currency);
    }
    fputs("  ", stdout);
    put_line(text_of(task, "instructions"), 60);
}

static void print_attempt(const json_t *attempt)
{
    printf("      %lld %-5s %s", number_of(attempt, "attempt"), text_of(attempt, "where"),
           text_of(attempt, "outcome"));
    const json_t *reasons = json_object_get(attempt, "reasons");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const char *reason = json_string_value(json_array_get(reasons, i));
        printf("%s%s", i ? "; " : ": ", reason ? reason : "");
    }
    putchar('\n');
}

static void print_round(const json_t *round)
{
    const json_t *steps = json_object_get(round, "steps");
    fputs("  ", stdout);
    put_line(text_of(round, "instructions"), 76);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        const json_t *attempts = json_object_get(step, "attempts");
        printf("    step %lld ", number_of(step, "step"));
        put_line(text_of(step, "title"), 60);
        for (size_t k = 0; k < json_array_size(attempts); k++)
            print_attempt(json_array_get(attempts, k));
    }
}

static void print_task(const json_t *task)
{
    const json_t *rounds = json_object_get(task, "rounds");
    print_head(task);
    for (size_t i = 0; i < json_array_size(rounds); i++) print_round(json_array_get(rounds, i));
}

/* The result, or why there is none. */
static int print_result(const json_t *task)
{
    const char *result = json_string_value(json_object_get(task, "result"));
    const json_t *error = json_object_get(task, "error");
    if (strcmp(text_of(task, "state"), "done") != 0 || !result)
        return json_is_object(error)
                   ? cli_failf("the task has failed: %s", text_of(error, "message"))
                   : cli_failf("the task is %s", text_of(task, "state"));
    cli_write(result, strlen(result));
    if (!*result || result[strlen(result) - 1] != '\n') cli_write("\n", 1);
    return EXIT_OK;
}

/* ---- commands ---- */

/* -1 = there are instructions, else the exit code. */
static int check_instructions(const tasks_args *a)
{
    if (!a->instructions != !a->instructions_file) return -1;
    return cli_usage_error("what is to be done? -p TEXT or -f FILE");
}

/* The instructions from the options, malloc'ed; NULL after printing why. */
static char *read_instructions(const tasks_args *a)
{
    char *text;
    size_t n;
    if (a->instructions) return strdup(a->instructions);
    return cli_read_input(a->instructions_file, &text, &n) ? text : NULL;
}

/* {"name", "text"}; where the file lies is nobody's matter. */
static json_t *read_file(const char *path)
{
    char *data;
    size_t n;
    const char *slash = strrchr(path, '/');
    if (!cli_read_input(path, &data, &n)) return NULL;
    json_t *text = memchr(data, '\0', n) ? NULL : json_stringn(data, n);
    free(data);
    if (!text) {
        cli_failf("%s is no text in UTF-8", cli_input_name(path));
        return NULL;
    }
    json_t *file = json_pack("{s:s, s:o}", "name", slash ? slash + 1 : path, "text", text);
    if (!file) cli_failf("the name of %s is no text in UTF-8", path);
    return file;
}

/* NULL if one of its words cannot be sent: none is to be lost. */
static json_t *policy_of(const tasks_args *a)
{
    json_t *categories = json_object();
    for (int32_t i = 0; i < a->n_keep; i++) {
        if (json_object_set_new(categories, a->keep[i], json_string("keep_local")) == 0) continue;
        json_decref(categories);
        return NULL;
    }
    return json_pack("{s:b, s:o}", "cloud", !a->local, "categories", categories);
}

static json_t *budget_of(const tasks_args *a)
{
    json_t *budget = json_object();
    if (a->tokens > 0) json_object_set_new(budget, "tokens", json_integer(a->tokens));
    if (a->cost >= 0) json_object_set_new(budget, "cost", json_real(a->cost));
    if (!a->currency || json_object_set_new(budget, "currency", json_string(a->currency)) == 0)
        return budget;
    json_decref(budget);
    return NULL;
}

/* The body of a new task; NULL after printing why. */
static json_t *make_task(const tasks_args *a)
{
    char *instructions = read_instructions(a);
    json_t *files = json_array(), *body = NULL;
    bool ok = instructions != NULL;
    for (int i = 0; ok && i < a->n_operands; i++)
        ok = json_array_append_new(files, read_file(a->operands[i])) == 0;
    if (ok)
        body = json_pack("{s:s, s:O, s:o, s:o, s:i, s:b}", "instructions", instructions, "files",
                         files, "policy", policy_of(a), "budget", budget_of(a), "priority",
                         a->priority, "paused", a->paused);
    if (ok && !body) cli_failf("what was given is no text in UTF-8");
    json_decref(files);
    free(instructions);
    return body;
}

static void print_event(void *user, const json_t *event)
{
    const tasks_args *a = user;
    if (a->json) {
        print_json(event);
        fflush(stdout);
        return;
    }
    fprintf(stderr, "calla tasks: %s", text_of(event, "type"));
    if (json_object_get(event, "step")) fprintf(stderr, " %lld", number_of(event, "step"));
    if (*text_of(event, "where")) fprintf(stderr, " %s", text_of(event, "where"));
    fputc('\n', stderr);
}

static bool has_ended(const json_t *task)
{
    const char *state = text_of(task, "state");
    return strcmp(state, "queued") != 0 && strcmp(state, "running") != 0;
}

/* Follows the events until the task ends; a stream that is cut is asked for again. */
static int watch(const tasks_args *a, const char *id)
{
    char path[128];
    json_t *task = NULL;
    int64_t last = 0;
    const struct timespec a_while = {.tv_sec = 1};
    snprintf(path, sizeof path, "/v1/tasks/%.64s", id);
    for (;;) {
        int code = tasks_listen(a, id, &last, print_event, (void *)a);
        if (code < 0) code = tasks_call(a, "GET", path, NULL, &task);
        if (code >= 0 || has_ended(task)) {
            if (code < 0) code = a->json ? EXIT_OK : print_result(task);
            json_decref(task);
            return code;
        }
        json_decref(task);
        task = NULL;
        nanosleep(&a_while, NULL);
    }
}

static int print_or_watch(const tasks_args *a, json_t *task /* taken */)
{
    int code = EXIT_OK;
    if (a->wait)
        code = watch(a, text_of(task, "id"));
    else if (a->json)
        print_json(task);
    else
        printf("%s\n", text_of(task, "id"));
    json_decref(task);
    return code;
}

static int add(const tasks_args *a)
{
    json_t *task = NULL;
    int code = check_instructions(a);
    if (code >= 0) return code;
    json_t *body = make_task(a);
    if (!body) return EXIT_FAILED;
    code = tasks_call(a, "POST", "/v1/tasks", body, &task);
    if (code < 0) return print_or_watch(a, task);
    json_decref(task);
    return code;
}

static int list(const tasks_args *a)
{
    json_t *answer;
    char path[96];
    if (a->state && a->state[strspn(a->state, "abcdefghijklmnopqrstuvwxyz")])
        return cli_usage_error("--state: '%s' is no state", a->state);
    snprintf(path, sizeof path, "/v1/tasks?limit=%d%s%.20s", a->limit, a->state ? "&state=" : "",
             a->state ? a->state : "");
    int code = tasks_call(a, "GET", path, NULL, &answer);
    const json_t *tasks = json_object_get(answer, "data");
    for (size_t i = 0; code < 0 && i < json_array_size(tasks); i++) {
        if (a->json)
            print_json(json_array_get(tasks, i));
        else
            print_head(json_array_get(tasks, i));
    }
    json_decref(answer);
    return code < 0 ? EXIT_OK : code;
}

static int follow(const tasks_args *a)
{
    char path[128];
    json_t *task = NULL;
    int code = check_instructions(a);
    if (code >= 0) return code;
    char *text = read_instructions(a);
    if (!text) return EXIT_FAILED;
    json_t *body = json_pack("{s:s}", "content", text);
    free(text);
    if (!body) return cli_failf("the instructions are no text in UTF-8");
    snprintf(path, sizeof path, "/v1/tasks/%.64s/messages", a->operands[0]);
    code = tasks_call(a, "POST", path, body, &task);
    if (code < 0) return print_or_watch(a, task);
    json_decref(task);
    return code;
}

/* What has no more to say than its name and the task. */
static int change(const tasks_args *a, const char *method, const char *verb, json_t *body)
{
    char path[128];
    json_t *answer;
    snprintf(path, sizeof path, "/v1/tasks/%.64s%s%s", a->operands[0], *verb ? "/" : "", verb);
    int code = tasks_call(a, method, path, body, &answer);
    if (code < 0 && a->json) print_json(answer);
    json_decref(answer);
    return code < 0 ? EXIT_OK : code;
}

static int show(const tasks_args *a, bool only_result)
{
    char path[128];
    json_t *task;
    snprintf(path, sizeof path, "/v1/tasks/%.64s", a->operands[0]);
    int code = tasks_call(a, "GET", path, NULL, &task);
    if (code < 0) {
        code = EXIT_OK;
        if (a->json)
            print_json(task);
        else if (only_result)
            code = print_result(task);
        else
            print_task(task);
    }
    json_decref(task);
    return code;
}

static int run_with_id(const tasks_args *a, const char *command)
{
    if (strcmp(command, "show") == 0) return show(a, false);
    if (strcmp(command, "result") == 0) return show(a, true);
    if (strcmp(command, "watch") == 0) return watch(a, a->operands[0]);
    if (strcmp(command, "follow") == 0) return follow(a);
    if (strcmp(command, "delete") == 0) return change(a, "DELETE", "", NULL);
    if (strcmp(command, "priority") == 0)
        return change(a, "POST", "", json_pack("{s:i}", "priority", a->priority));
    return change(a, "POST", command, json_object()); /* pause, resume, cancel */
}

/* An id is made of letters, digits and '_': nothing that would change the request's path. */
static bool is_id(const char *text)
{
    return *text && strlen(text) <= 64 &&
           !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")];
}

static int run_command(tasks_args *a)
{
    static const char *const with_id[] = {"show",     "result", "watch",  "follow", "delete",
                                          "priority", "pause",  "resume", "cancel", NULL};
    if (a->n_operands == 0) return cli_usage_error("which command? add, list, show ...");
    const char *command = a->operands[0];
    a->operands++;
    a->n_operands--;
    if (strcmp(command, "add") == 0) return add(a);
    for (int i = 0; with_id[i]; i++) {
        if (strcmp(command, with_id[i]) != 0) continue;
        if (a->n_operands != 1 || !is_id(a->operands[0]))
            return cli_usage_error("%s: the id of one task is wanted", command);
        return run_with_id(a, command);
    }
    if (strcmp(command, "list") != 0) return cli_usage_error("unknown command '%s'", command);
    if (a->n_operands > 0) return cli_usage_error("list takes no '%s'", a->operands[0]);
    return list(a);
}

int cmd_tasks(int argc, char **argv)
{
    tasks_args a = {
        .url = "http://127.0.0.1:8080", .key_env = "CALLA_API_KEY", .limit = 100, .cost = -1};
    int code = parse_options(argc, argv, &a);
    if (code >= 0) return code;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) return cli_failf("libcurl does not start");
    code = run_command(&a);
    curl_global_cleanup();
    return code;
}
