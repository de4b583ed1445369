#include "support/files.h"

#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *read_test_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t size = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(size + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, size, f), size);
    fclose(f);
    p[size] = '\0';
    if (n) *n = size;
    return p;
}

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("cannot create %s", path);
    return f;
}

void write_test_file(const char *dir, const char *name, const void *bytes, size_t n)
{
    FILE *f = create(dir, name);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void put_test_file(const char *dir, const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *slash = path + strlen(dir) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    write_test_file(dir, name, text, strlen(text));
}

void write_safetensors(const char *dir, const char *name, const char *header, const void *data,
                       size_t n_data)
{
    size_t n = strlen(header);
    FILE *f = create(dir, name);
    for (int i = 0; i < 8; i++) fputc((int)(n >> (8 * i) & 255), f);
    assert_int_equal(fwrite(header, 1, n, f), n);
    if (data)
        assert_int_equal(fwrite(data, 1, n_data, f), n_data);
    else
        for (size_t i = 0; i < n_data; i++) fputc(0, f);
    assert_int_equal(fclose(f), 0);
}

char *edit_text(const char *text, const text_edit *edits, int n_edits)
{
    char *now = strdup(text);
    assert_non_null(now);
    for (int i = 0; i < n_edits; i++) {
        char *at = strstr(now, edits[i].from);
        if (!at) fail_msg("nothing to edit: %s", edits[i].from);
        size_t n_from = strlen(edits[i].from), n_to = strlen(edits[i].to),
               before = (size_t)(at - now);
        char *next = malloc(strlen(now) - n_from + n_to + 1);
        assert_non_null(next);
        memcpy(next, now, before);
        memcpy(next + before, edits[i].to, n_to);
        strcpy(next + before + n_to, at + n_from);
        free(now);
        now = next;
    }
    return now;
}

const char *edit_checkpoint(const char *src_dir, const text_edit *config_edits, int n_config_edits,
                            const text_edit *header_edits, int n_header_edits)
{
    const char *dir = temporary_dir();
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", src_dir);
    char *config = read_test_file(path, NULL);
    char *edited = edit_text(config, config_edits, n_config_edits);
    write_test_file(dir, "config.json", edited, strlen(edited));
    free(edited);
    free(config);

    size_t n, n_header = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", src_dir);
    char *file = read_test_file(path, &n);
    for (int i = 7; i >= 0; i--) n_header = n_header << 8 | (unsigned char)file[i];
    char *header = strndup(file + 8, n_header);
    assert_non_null(header);
    edited = edit_text(header, header_edits, n_header_edits);
    write_safetensors(dir, "model.safetensors", edited, file + 8 + n_header, n - 8 - n_header);
    free(edited);
    free(header);
    free(file);
    return dir;
}
