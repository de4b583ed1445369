#include "model/safetensors_write.h"

#include "base/memory.h"
#include "base/strbuf.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t element_bytes(tensor_dtype dtype)
{
    assert(dtype != DTYPE_OTHER);
    return dtype == DTYPE_BF16 ? 2 : 4;
}

calla_status checkpoint_plan_add(checkpoint_plan *plan, const char *name, tensor_dtype dtype,
                                 int32_t n_dims, const int64_t *shape, int32_t *index,
                                 calla_error *err)
{
    assert(n_dims <= TENSOR_MAX_DIMS && !plan->shards);
    planned_tensor t = {.dtype = dtype, .n_dims = n_dims, .n_bytes = element_bytes(dtype)};
    for (int32_t i = 0; i < n_dims; i++) {
        assert(shape[i] > 0);
        t.shape[i] = shape[i];
        if (!size_mul(t.n_bytes, (size_t)shape[i], &t.n_bytes))
            return error_set(err, CALLA_ERR_INPUT, "%s: size overflows", name);
    }
    void *array = plan->tensors;
    CALLA_TRY(mem_grow(&array, &plan->capacity, (size_t)plan->n_tensors + 1, sizeof t,
                       "list of tensors", err));
    plan->tensors = array;
    t.name = strdup(name);
    if (!t.name) return error_set(err, CALLA_ERR_MEMORY, "no memory for the name %s", name);
    if (index) *index = plan->n_tensors;
    plan->tensors[plan->n_tensors++] = t;
    return CALLA_OK;
}

calla_status checkpoint_plan_add_quantized(checkpoint_plan *plan, const char *stem, int bits,
                                           int32_t n_dims, const int64_t *shape,
                                           quantized_triple *triple, calla_error *err)
{
    char name[256];
    int64_t s[TENSOR_MAX_DIMS], cols = shape[n_dims - 1];
    assert(strlen(stem) < sizeof name - 8 && cols % 64 == 0);
    memcpy(s, shape, (size_t)n_dims * sizeof *s);
    s[n_dims - 1] = cols / 32 * bits;
    snprintf(name, sizeof name, "%s.weight", stem);
    CALLA_TRY(checkpoint_plan_add(plan, name, DTYPE_U32, n_dims, s, &triple->weight, err));
    s[n_dims - 1] = cols / 64;
    snprintf(name, sizeof name, "%s.scales", stem);
    CALLA_TRY(checkpoint_plan_add(plan, name, DTYPE_BF16, n_dims, s, &triple->scales, err));
    snprintf(name, sizeof name, "%s.biases", stem);
    return checkpoint_plan_add(plan, name, DTYPE_BF16, n_dims, s, &triple->biases, err);
}

/* ---- layout ---- */

/* Length of the name without the suffix of a quantised triple. */
static size_t stem_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dot && (!strcmp(dot, ".weight") || !strcmp(dot, ".scales") || !strcmp(dot, ".biases")))
        return (size_t)(dot - name);
    return strlen(name);
}

static bool same_stem(const planned_tensor *a, const planned_tensor *b)
{
    size_t n = stem_length(a->name);
    return n == stem_length(b->name) && memcmp(a->name, b->name, n) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(planned_tensor *const *)a)->name, (*(planned_tensor *const *)b)->name);
}

static int by_file_order(const void *a, const void *b)
{
    const planned_tensor *s = *(planned_tensor *const *)a, *t = *(planned_tensor *const *)b;
    if (s->shard != t->shard) return s->shard < t->shard ? -1 : 1;
    size_t x = element_bytes(s->dtype), y = element_bytes(t->dtype);
    if (x != y) return x > y ? -1 : 1;
    return strcmp(s->name, t->name);
}

/* Fills shards in name order; order [n_tensors] is sorted by name. */
static calla_status assign_shards(checkpoint_plan *plan, planned_tensor **order, size_t limit,
                                  calla_error *err)
{
    size_t used = 0;
    int32_t shard = 0;
    for (int32_t i = 0, end; i < plan->n_tensors; i = end) {
        size_t bytes = 0;
        for (end = i; end < plan->n_tensors && same_stem(order[i], order[end]); end++) {
            if (end > 0 && strcmp(order[end - 1]->name, order[end]->name) == 0)
                return error_set(err, CALLA_ERR_INPUT, "two tensors are named %s",
                                 order[end]->name);
            if (!size_add(bytes, order[end]->n_bytes, &bytes))
                return error_set(err, CALLA_ERR_INPUT, "%s: size overflows", order[end]->name);
        }
        if (used > 0 && (bytes > limit || used > limit - bytes)) {
            shard++;
            used = 0;
        }
        used += bytes;
        if (!size_add(plan->tensor_bytes, bytes, &plan->tensor_bytes))
            return error_set(err, CALLA_ERR_INPUT, "size of the checkpoint overflows");
        for (int32_t j = i; j < end; j++) order[j]->shard = shard;
    }
    plan->n_shards = shard + 1;
    if (plan->n_shards > MAX_SHARDS)
        return error_set(err, CALLA_ERR_INPUT,
                         "%d shards of at most %zu bytes, more than the %d allowed", plan->n_shards,
                         limit, MAX_SHARDS);
    return CALLA_OK;
}

static void put_entry(strbuf *s, const planned_tensor *t, size_t begin)
{
    /* Names are ours or a validated checkpoint's: nothing in them needs escaping. */
    strbuf_printf(s, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, tensor_dtype_name(t->dtype));
    for (int32_t i = 0; i < t->n_dims; i++)
        strbuf_printf(s, "%s%" PRId64, i ? "," : "", t->shape[i]);
    strbuf_printf(s, "],\"data_offsets\":[%zu,%zu]}", begin, begin + t->n_bytes);
}

/* The header and offsets of one shard's n tensors, in file order. */
static calla_status lay_out_shard(planned_shard *shard, planned_tensor **tensors, int32_t n,
                                  calla_error *err)
{
    strbuf s = {0};
    strbuf_append(&s, "\0\0\0\0\0\0\0\0", 8);
    strbuf_puts(&s, "{\"__metadata__\":{\"format\":\"mlx\"}");
    size_t offset = 0;
    for (int32_t i = 0; i < n; i++) {
        put_entry(&s, tensors[i], offset);
        tensors[i]->offset = offset;
        offset += tensors[i]->n_bytes;
    }
    strbuf_putc(&s, '}');
    while (s.n % 8 && !s.failed) strbuf_putc(&s, ' ');
    CALLA_TRY(strbuf_take(&s, &shard->header, &shard->n_header_bytes, err));
    uint64_t length = shard->n_header_bytes - 8;
    for (int i = 0; i < 8; i++) shard->header[i] = (char)(length >> (8 * i));
    for (int32_t i = 0; i < n; i++) tensors[i]->offset += shard->n_header_bytes;
    shard->n_file_bytes = shard->n_header_bytes + offset;
    return CALLA_OK;
}

static calla_status lay_out_shards(checkpoint_plan *plan, planned_tensor **order, calla_error *err)
{
    plan->shards = calloc((size_t)plan->n_shards, sizeof *plan->shards);
    if (!plan->shards) return error_set(err, CALLA_ERR_MEMORY, "no memory for the shards");
    int32_t i = 0;
    for (int32_t k = 0; k < plan->n_shards; k++) {
        int32_t end = i;
        while (end < plan->n_tensors && order[end]->shard == k) end++;
        planned_shard *shard = &plan->shards[k];
        if (plan->n_shards == 1)
            strcpy(shard->name, "model.safetensors");
        else
            snprintf(shard->name, sizeof shard->name, "model-%05d-of-%05d.safetensors", k + 1,
                     plan->n_shards);
        CALLA_TRY(lay_out_shard(shard, order + i, end - i, err));
        plan->file_bytes += shard->n_file_bytes;
        i = end;
    }
    return CALLA_OK;
}

/* Pointers to all tensors, malloc'ed. */
static calla_status tensor_pointers(const checkpoint_plan *plan, planned_tensor ***pointers,
                                    calla_error *err)
{
    planned_tensor **p = calloc((size_t)plan->n_tensors + 1, sizeof *p);
    if (!p) return error_set(err, CALLA_ERR_MEMORY, "no memory for %d tensors", plan->n_tensors);
    for (int32_t i = 0; i < plan->n_tensors; i++) p[i] = &plan->tensors[i];
    *pointers = p;
    return CALLA_OK;
}

calla_status checkpoint_plan_layout(checkpoint_plan *plan, int64_t max_shard_bytes,
                                    calla_error *err)
{
    assert(plan->n_tensors > 0 && max_shard_bytes > 0 && !plan->shards);
    planned_tensor **order;
    calla_status status;
    CALLA_TRY(tensor_pointers(plan, &order, err));
    size_t n = (size_t)plan->n_tensors;
    qsort(order, n, sizeof *order, by_name);
    CALLA_TRY_GOTO(assign_shards(plan, order, (size_t)max_shard_bytes, err), done);
    qsort(order, n, sizeof *order, by_file_order);
    CALLA_TRY_GOTO(lay_out_shards(plan, order, err), done);
done:
    free(order);
    return status;
}

void checkpoint_plan_free(checkpoint_plan *plan)
{
    for (int32_t i = 0; i < plan->n_tensors; i++) free(plan->tensors[i].name);
    free(plan->tensors);
    for (int32_t i = 0; plan->shards && i < plan->n_shards; i++) free(plan->shards[i].header);
    free(plan->shards);
    *plan = (checkpoint_plan){0};
}

calla_status checkpoint_plan_index(const checkpoint_plan *plan, int64_t n_parameters, char **text,
                                   size_t *n_bytes, calla_error *err)
{
    planned_tensor **order;
    CALLA_TRY(tensor_pointers(plan, &order, err));
    qsort(order, (size_t)plan->n_tensors, sizeof *order, by_name);
    strbuf s = {0};
    strbuf_printf(&s,
                  "{\n    \"metadata\": {\n        \"total_size\": %zu,\n"
                  "        \"total_parameters\": %" PRId64 "\n    },\n    \"weight_map\": {",
                  plan->tensor_bytes, n_parameters);
    for (int32_t i = 0; i < plan->n_tensors; i++)
        strbuf_printf(&s, "%s\n        \"%s\": \"%s\"", i ? "," : "", order[i]->name,
                      plan->shards[order[i]->shard].name);
    strbuf_puts(&s, "\n    }\n}\n");
    free(order);
    return strbuf_take(&s, text, n_bytes, err);
}
