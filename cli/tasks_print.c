/* calla tasks: tasks as people read them. */
#include "tasks.h"

#include <stdlib.h>
#include <string.h>

const char *tasks_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

long long tasks_number_of(const json_t *object, const char *key)
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

void tasks_print_json(const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    if (text) puts(text);
    free(text);
}

static long long tokens_of(const json_t *task)
{
    const json_t *use = json_object_get(task, "usage");
    const json_t *here = json_object_get(use, "local"), *there = json_object_get(use, "cloud");
    return tasks_number_of(here, "input_tokens") + tasks_number_of(here, "output_tokens") +
           tasks_number_of(there, "input_tokens") + tasks_number_of(there, "output_tokens");
}

void tasks_print_head(const json_t *task)
{
    const json_t *use = json_object_get(task, "usage");
    const char *currency = tasks_text_of(use, "currency");
    printf("%s  %-9s%s  %4lld  %8lld tokens", tasks_text_of(task, "id"),
           tasks_text_of(task, "state"),
           json_is_true(json_object_get(task, "paused")) ? " (paused)" : "",
           tasks_number_of(task, "priority"), tokens_of(task));
    if (*currency) {
        printf("  %.6f ", json_number_value(json_object_get(use, "cost")));
        for (; *currency; currency++) putchar((unsigned char)*currency < ' ' ? '?' : *currency);
    }
    fputs("  ", stdout);
    put_line(tasks_text_of(task, "instructions"), 60);
}

static void print_attempt(const json_t *attempt)
{
    printf("      %lld %-5s %s", tasks_number_of(attempt, "attempt"),
           tasks_text_of(attempt, "where"), tasks_text_of(attempt, "outcome"));
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
    put_line(tasks_text_of(round, "instructions"), 76);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        const json_t *attempts = json_object_get(step, "attempts");
        printf("    step %lld ", tasks_number_of(step, "step"));
        put_line(tasks_text_of(step, "title"), 60);
        for (size_t k = 0; k < json_array_size(attempts); k++)
            print_attempt(json_array_get(attempts, k));
    }
}

/* What a task waits for somebody to agree to. */
static void print_question(const json_t *task)
{
    const json_t *question = json_object_get(task, "consent");
    const json_t *findings = json_object_get(question, "findings");
    if (!json_is_object(question)) return;
    printf("  step %lld may send this only with your consent (calla tasks consent %s):\n",
           tasks_number_of(question, "step"), tasks_text_of(task, "id"));
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *f = json_array_get(findings, i);
        printf("    %-16s ", tasks_text_of(f, "category"));
        put_line(tasks_text_of(f, "excerpt"), 60);
    }
}

void tasks_print_task(const json_t *task)
{
    const json_t *rounds = json_object_get(task, "rounds");
    tasks_print_head(task);
    for (size_t i = 0; i < json_array_size(rounds); i++) print_round(json_array_get(rounds, i));
    print_question(task);
}

/* The result, or why there is none. */
int tasks_print_result(const json_t *task)
{
    const char *result = json_string_value(json_object_get(task, "result"));
    const json_t *error = json_object_get(task, "error");
    if (strcmp(tasks_text_of(task, "state"), "done") != 0 || !result)
        return json_is_object(error)
                   ? cli_failf("the task has failed: %s", tasks_text_of(error, "message"))
                   : cli_failf("the task is %s", tasks_text_of(task, "state"));
    cli_write(result, strlen(result));
    if (!*result || result[strlen(result) - 1] != '\n') cli_write("\n", 1);
    return EXIT_OK;
}
