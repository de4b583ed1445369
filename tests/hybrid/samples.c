#include "hybrid/samples.h"

#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *behind(const char *p, const char *word)
{
    size_t n = strlen(word);
    return strncmp(p, word, n) == 0 ? p + n : NULL;
}

/* Behind "⟦": the label's name, after which its value begins. */
static const char *open_label(sample *s, const char *p)
{
    char name[32];
    assert_true(s->n_labels < SAMPLE_MAX_LABELS);
    sample_label *label = &s->labels[s->n_labels];
    label->optional = *p == '?';
    p += label->optional;
    size_t n = strcspn(p, "|\n");
    assert_true(p[n] == '|' && n < sizeof name);
    memcpy(name, p, n);
    name[n] = '\0';
    if (!detect_category_of_name(name, &label->category))
        fail_msg("samples.txt:%d: no category \"%s\"", s->line, name);
    label->start = s->text.n;
    return p + n + 1;
}

static void add_line(sample *s, const char *p, bool *is_open)
{
    const char *after;
    while (*p) {
        if ((after = behind(p, "⟦"))) {
            assert_false(*is_open);
            *is_open = true;
            p = open_label(s, after);
        } else if ((after = behind(p, "⟧"))) {
            assert_true(*is_open);
            *is_open = false;
            s->labels[s->n_labels++].end = s->text.n;
            p = after;
        } else if ((after = behind(p, "¦"))) {
            p = after;
        } else if ((after = behind(p, "␍"))) {
            strbuf_putc(&s->text, '\r');
            p = after;
        } else {
            strbuf_putc(&s->text, *p++);
        }
    }
}

void samples_visit(void (*visit)(const sample *s, void *user), void *user)
{
    FILE *f = fopen(CALLA_SOURCE_DIR "/tests/hybrid/samples.txt", "rb");
    assert_non_null(f);
    sample s = {0};
    char *line = NULL;
    size_t capacity = 0;
    bool is_open = false;
    int number = 0;
    while (getline(&line, &capacity, f) >= 0) {
        number++;
        const char *language = behind(line, "## ");
        if (!language) {
            assert_true(s.line > 0);
            add_line(&s, line, &is_open);
            continue;
        }
        assert_false(is_open);
        if (s.line) visit(&s, user);
        strbuf_free(&s.text);
        s = (sample){.line = number};
        snprintf(s.language, sizeof s.language, "%.*s", (int)strcspn(language, "\n"), language);
    }
    assert_false(is_open);
    if (s.line) visit(&s, user);
    strbuf_free(&s.text);
    free(line);
    fclose(f);
}
