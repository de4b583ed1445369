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
    "       calla tasks consent ID\n"
    "       calla tasks pause ID | resume ID | cancel ID | delete ID | priority ID --priority N\n"
    "\n"
    "Gives tasks to a running `calla serve --tasks FILE`, which divides each into steps, runs "
    "them\n"
    "here or in the cloud as its policy allows (docs/hybrid.md), and merges the results.\n";

static const char notes[] =
    "Where the policy wants to be asked before something leaves, a task waits "
    "for `consent ID`,\n"
    "which shows what it is and asks on the terminal; so does --wait.\n"
    "\n"
    "The key is taken from the environment. Files are read here and sent "
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
         "list: only those that are queued, running, waiting_for_consent, done, failed, cancelled"},
        {0, "limit", "N", cli_int32(&a->limit, 1, 1000), "list: so many at most [100]"},
    };
    const cli_option task[] = {
        {'p', "prompt", "TEXT", cli_text(&a->instructions), "what is to be done"},
        {'f', "prompt-file", "FILE", cli_text(&a->instructions_file), "the same from a file"},
        {0, "local", NULL, cli_true(&a->local), "nothing of it leaves this machine"},
        {0, "keep", "CATEGORY", cli_other(take_category, a),
         "texts with this in them stay here, as email or finance (repeatable)"},
        {0, "unattended", NULL, cli_true(&a->unattended),
         "do not wait for a consent: what would have to be asked about stays here"},
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
    return json_pack("{s:b, s:s, s:o}", "cloud", !a->local, "on_ask",
                     a->unattended ? "keep_local" : "wait", "categories", categories);
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

static int priority_of(const tasks_args *a)
{
    return a->priority == TASKS_NO_PRIORITY ? 0 : a->priority;
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
                         priority_of(a), "paused", a->paused);
    if (ok && !body) cli_failf("what was given is no text in UTF-8");
    json_decref(files);
    free(instructions);
    return body;
}

/* Until it waits for a consent. */
static bool print_event(void *user, const json_t *event)
{
    const tasks_args *a = user;
    if (a->json) {
        tasks_print_json(event);
        fflush(stdout);
    } else {
        fprintf(stderr, "calla tasks: %s", tasks_text_of(event, "type"));
        if (json_object_get(event, "step"))
            fprintf(stderr, " %lld", tasks_number_of(event, "step"));
        if (*tasks_text_of(event, "where")) fprintf(stderr, " %s", tasks_text_of(event, "where"));
        fputc('\n', stderr);
    }
    return strcmp(tasks_text_of(event, "type"), "task.waiting_for_consent") != 0;
}

static bool is_in(const json_t *task, const char *state)
{
    return strcmp(tasks_text_of(task, "state"), state) == 0;
}

/* Shows what a task wants to send, asks, and gives the answer to the server. -1 = it is given. */
static int ask_consent(const tasks_args *a, const json_t *task)
{
    char path[128];
    const char *id = tasks_text_of(task, "id");
    const json_t *question = json_object_get(task, "consent");
    json_t *answer = NULL;
    if (!json_is_object(question)) return cli_failf("the task asks nothing");
    cli_consent said = cli_ask_consent(tasks_text_of(question, "destination"),
                                       json_object_get(question, "findings"));
    if (said == CLI_CONSENT_UNASKED)
        return cli_failf("the task waits for a yes or no, and there is no terminal to ask on: "
                         "calla tasks consent %s",
                         id);
    snprintf(path, sizeof path, "/v1/tasks/%.64s/consent", id);
    json_t *body = said == CLI_CONSENT_GIVEN
                       ? json_pack("{s:O}", "token", json_object_get(question, "token"))
                       : json_pack("{s:b}", "decline", 1);
    int code = tasks_call(a, "POST", path, body, &answer);
    json_decref(answer);
    return code;
}

/* Follows the events behind number `last` until the task ends; a stream that is cut is asked for
 * again. */
static int watch(const tasks_args *a, const char *id, int64_t last)
{
    char path[128];
    const struct timespec a_while = {.tv_sec = 1};
    snprintf(path, sizeof path, "/v1/tasks/%.64s", id);
    for (;;) {
        json_t *task = NULL;
        bool ended = false;
        int code = tasks_listen(a, id, &last, print_event, (void *)a);
        if (code < 0) code = tasks_call(a, "GET", path, NULL, &task);
        if (code < 0)
            ended = is_in(task, "done") || is_in(task, "failed") || is_in(task, "cancelled");
        bool waits = code < 0 && is_in(task, "waiting_for_consent");
        if (waits) code = ask_consent(a, task);
        if (ended) code = a->json ? EXIT_OK : tasks_print_result(task);
        json_decref(task);
        if (code >= 0) return code;
        if (!waits) nanosleep(&a_while, NULL);
    }
}

/* What became of a request: its id, or with --wait its end, from the events behind `last` on. */
static int print_or_watch(const tasks_args *a, json_t *task /* taken */, int64_t last)
{
    int code = EXIT_OK;
    if (a->wait)
        code = watch(a, tasks_text_of(task, "id"), last);
    else if (a->json)
        tasks_print_json(task);
    else
        printf("%s\n", tasks_text_of(task, "id"));
    json_decref(task);
    return code;
}

/* One that a header carries as it is: an empty one would not be sent. */
static bool is_name(const char *text)
{
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
    return text[strspn(text, " ")] != '\0';
}

static int add(const tasks_args *a)
{
    json_t *task = NULL;
    int code = check_instructions(a);
    if (code >= 0) return code;
    if (a->idempotency_key && !is_name(a->idempotency_key))
        return cli_usage_error("--once: a name is wanted, without control characters");
    json_t *body = make_task(a);
    if (!body) return EXIT_FAILED;
    code = tasks_call(a, "POST", "/v1/tasks", body, &task);
    if (code < 0) return print_or_watch(a, task, 0);
    json_decref(task);
    return code;
}

static int list(const tasks_args *a)
{
    json_t *answer;
    char path[96];
    if (a->state && a->state[strspn(a->state, "abcdefghijklmnopqrstuvwxyz_")])
        return cli_usage_error("--state: '%s' is no state", a->state);
    snprintf(path, sizeof path, "/v1/tasks?limit=%d%s%.20s", a->limit, a->state ? "&state=" : "",
             a->state ? a->state : "");
    int code = tasks_call(a, "GET", path, NULL, &answer);
    const json_t *tasks = json_object_get(answer, "data");
    for (size_t i = 0; code < 0 && i < json_array_size(tasks); i++) {
        if (a->json)
            tasks_print_json(json_array_get(tasks, i));
        else
            tasks_print_head(json_array_get(tasks, i));
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
    if (code < 0) return print_or_watch(a, task, tasks_number_of(task, "last_event"));
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
    if (code < 0 && a->json) tasks_print_json(answer);
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
            tasks_print_json(task);
        else if (only_result)
            code = tasks_print_result(task);
        else
            tasks_print_task(task);
    }
    json_decref(task);
    return code;
}

static int consent(const tasks_args *a)
{
    char path[128];
    json_t *task;
    snprintf(path, sizeof path, "/v1/tasks/%.64s", a->operands[0]);
    int code = tasks_call(a, "GET", path, NULL, &task);
    if (code < 0) code = ask_consent(a, task);
    json_decref(task);
    return code < 0 ? EXIT_OK : code;
}

static int run_with_id(const tasks_args *a, const char *command)
{
    if (strcmp(command, "show") == 0) return show(a, false);
    if (strcmp(command, "result") == 0) return show(a, true);
    if (strcmp(command, "watch") == 0) return watch(a, a->operands[0], 0);
    if (strcmp(command, "follow") == 0) return follow(a);
    if (strcmp(command, "consent") == 0) return consent(a);
    if (strcmp(command, "delete") == 0) return change(a, "DELETE", "", NULL);
    if (strcmp(command, "priority") == 0 && a->priority == TASKS_NO_PRIORITY)
        return cli_usage_error("priority: which one? --priority N");
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
    static const char *const with_id[] = {"show",    "result", "watch",    "follow",
                                          "consent", "delete", "priority", "pause",
                                          "resume",  "cancel", NULL};
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
    tasks_args a = {.url = "http://127.0.0.1:8080",
                    .key_env = "CALLA_API_KEY",
                    .limit = 100,
                    .cost = -1,
                    .priority = TASKS_NO_PRIORITY};
    int code = parse_options(argc, argv, &a);
    if (code >= 0) return code;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) return cli_failf("libcurl does not start");
    code = run_command(&a);
    curl_global_cleanup();
    return code;
}
