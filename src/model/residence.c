#include "model/residence.h"

#include "base/memory.h"

#include <assert.h>
#include <stdlib.h>

/* The files with the ranges of a part. */
typedef struct selection {
    load_file *files; /* [n_files] */
    byte_range *ranges;
    int32_t n_files;
} selection;

static int by_position(const void *a, const void *b)
{
    const tensor *x = *(const tensor *const *)a, *y = *(const tensor *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->data > y->data) - (x->data < y->data);
}

static bool is_in_part(const tensor *t, weights_part part)
{
    return t->used && t->n_bytes > 0 && (part == WEIGHTS_ALL || !t->sparse);
}

int64_t weights_part_bytes(const model_weights *w, weights_part part)
{
    int64_t n = 0;
    for (int32_t i = 0; i < w->tensors.n_tensors; i++)
        if (is_in_part(&w->tensors.tensors[i], part)) n += (int64_t)w->tensors.tensors[i].n_bytes;
    return n;
}

/* The part's tensors in the order of the files; returns how many. */
static int32_t list_tensors(const tensor_set *set, weights_part part, const tensor **list)
{
    int32_t n = 0;
    for (int32_t i = 0; i < set->n_tensors; i++)
        if (is_in_part(&set->tensors[i], part)) list[n++] = &set->tensors[i];
    qsort(list, (size_t)n, sizeof *list, by_position);
    return n;
}

/* Neighbours become one range; so do those less than a page apart, which share one anyway. */
static void add_range(load_file *file, byte_range *next, const unsigned char *data, size_t n)
{
    size_t begin = (size_t)(data - file->map->data);
    if (file->n_ranges == 0) file->ranges = next;
    byte_range *last = next - 1;
    if (file->n_ranges > 0 && begin < last->end + page_bytes()) {
        last->end = begin + n;
        return;
    }
    *next = (byte_range){begin, begin + n};
    file->n_ranges++;
}

static calla_status select_part(tensor_set *set, weights_part part, selection *s, calla_error *err)
{
    void *files, *ranges, *list;
    size_t n = (size_t)set->n_tensors;
    *s = (selection){.n_files = set->n_files};
    CALLA_TRY(mem_alloc((size_t)set->n_files, sizeof(load_file), "list of files", &files, err));
    s->files = files;
    CALLA_TRY(mem_alloc(n, sizeof(byte_range), "list of ranges", &ranges, err));
    s->ranges = ranges;
    CALLA_TRY(mem_alloc(n, sizeof(tensor *), "list of tensors", &list, err));
    const tensor **order = list;
    int32_t n_order = list_tensors(set, part, order);
    for (int32_t f = 0; f < set->n_files; f++)
        s->files[f] = (load_file){.path = set->files[f].path, .map = &set->files[f].map};
    byte_range *next = s->ranges;
    for (int32_t i = 0; i < n_order; i++) {
        load_file *file = &s->files[order[i]->file];
        int32_t before = file->n_ranges;
        add_range(file, next, order[i]->data, order[i]->n_bytes);
        next += file->n_ranges - before;
    }
    mem_free(list);
    return CALLA_OK;
}

static void free_selection(selection *s)
{
    mem_free(s->files);
    mem_free(s->ranges);
}

calla_status weights_warm_up(model_weights *w, weights_part part, const load_control *control,
                             calla_error *err)
{
    selection s;
    assert(!w->tensors.in_memory);
    calla_status status = select_part(&w->tensors, part, &s, err);
    if (status == CALLA_OK) status = files_warm_up(s.files, s.n_files, control, err);
    free_selection(&s);
    return status;
}

calla_status weights_copy(model_weights *w, bool keep_cached, const load_control *control,
                          calla_error *err)
{
    selection s;
    assert(!w->tensors.in_memory);
    calla_status status = select_part(&w->tensors, WEIGHTS_ALL, &s, err);
    if (status == CALLA_OK) status = files_copy(s.files, s.n_files, keep_cached, control, err);
    free_selection(&s);
    return status;
}

int64_t weights_lock(model_weights *w, weights_part part)
{
    selection s;
    int64_t n = 0;
    if (select_part(&w->tensors, part, &s, NULL) == CALLA_OK) n = files_lock(s.files, s.n_files);
    free_selection(&s);
    return n;
}
