/* The JSON form of calla info. */
#include "info.h"

/* A string as JSON, or null where it is not UTF-8 (a path may be anything). */
static json_t *text_json(const char *text)
{
    json_t *value = json_string(text);
    return value ? value : json_null();
}

static json_t *strings_json(const char *const *texts, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) json_array_append_new(list, json_string(texts[i]));
    return list;
}

json_t *info_tensor_json(const calla_tensor_info *tensor)
{
    json_t *shape = json_array();
    for (int32_t i = 0; i < tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:b}", "name", tensor->name, "dtype", tensor->dtype,
                     "shape", shape, "bytes", (json_int_t)tensor->n_bytes, "file",
                     text_json(tensor->file), "skipped", tensor->skipped);
}

static json_t *checkpoint_json(const info_report *r)
{
    const calla_checkpoint_info *c = &r->checkpoint;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"n_layers", c->n_layers},           {"n_attention_layers", c->n_attention_layers},
        {"hidden_size", c->hidden_size},     {"n_vocab", c->n_vocab},
        {"n_query_heads", c->n_query_heads}, {"n_kv_heads", c->n_kv_heads},
        {"n_key_heads", c->n_key_heads},     {"n_value_heads", c->n_value_heads},
        {"n_experts", c->n_experts},         {"n_experts_per_token", c->n_experts_per_token},
        {"expert_width", c->expert_width},   {"shared_expert_width", c->shared_expert_width},
        {"max_positions", c->max_positions}, {"n_files", c->n_files},
        {"n_tensors", c->n_tensors},         {"n_skipped_tensors", c->n_skipped_tensors},
        {"n_parameters", c->n_parameters},   {"text_bytes", c->text_bytes},
        {"expert_bytes", c->expert_bytes},   {"skipped_bytes", c->skipped_bytes},
        {"token_bytes", c->token_bytes},
    };
    json_t *o = json_pack("{s:o, s:s, s:b}", "path", text_json(r->model), "layout",
                          c->layout == CALLA_LAYOUT_MLX4 ? "mlx4" : "bf16", "has_tokenizer",
                          c->has_tokenizer);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        json_object_set_new(o, numbers[i].name, json_integer(numbers[i].value));
    json_t *parts = json_array();
    for (int32_t i = 0; i < r->n_parts; i++)
        json_array_append_new(parts, json_pack("{s:s, s:I, s:I}", "name", r->parts[i].name,
                                               "n_tensors", (json_int_t)r->parts[i].n_tensors,
                                               "bytes", (json_int_t)r->parts[i].n_bytes));
    json_object_set_new(o, "parts", parts);
    return o;
}

static json_t *plan_json(const info_report *r)
{
    const calla_memory_plan *p = &r->plan;
    return json_pack("{s:s, s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "backend", p->backend,
                     "on_device", p->on_device, "n_ctx", p->n_ctx, "weights_bytes",
                     (json_int_t)p->weights_bytes, "prepared_bytes", (json_int_t)p->prepared_bytes,
                     "kv_bytes", (json_int_t)p->kv_bytes, "state_bytes", (json_int_t)p->state_bytes,
                     "snapshot_bytes", (json_int_t)p->snapshot_bytes, "scratch_bytes",
                     (json_int_t)p->scratch_bytes, "total_bytes", (json_int_t)p->total_bytes);
}

static json_t *machine_json(const calla_machine_info *m)
{
    const char *const *isa = calla_isa_names();
    int32_t n_isa = 0;
    while (isa[n_isa]) n_isa++;
    return json_pack(
        "{s:o, s:i, s:i, s:i, s:i, s:o, s:o, s:I, s:b, s:I, s:I}", "cpu", text_json(m->cpu),
        "n_processors", (int)m->n_processors, "n_nodes", (int)m->n_nodes, "n_node_processors",
        (int)m->n_node_processors, "n_node_cores", (int)m->n_node_cores, "cpu_features",
        strings_json(m->cpu_features, m->n_cpu_features), "isa_names", strings_json(isa, n_isa),
        "ram_bytes", (json_int_t)m->ram_bytes, "ram_is_limited", m->ram_is_limited,
        "ram_available_bytes", (json_int_t)m->ram_available_bytes, "lockable_bytes",
        (json_int_t)m->lockable_bytes);
}

char *info_report_json(const info_report *report, json_t *tensors)
{
    json_t *o = json_object();
    if (report->model) {
        json_object_set_new(o, "checkpoint", checkpoint_json(report));
        if (tensors) json_object_set(o, "tensors", tensors);
        json_object_set_new(o, "memory", plan_json(report));
    }
    json_object_set_new(o, "machine", machine_json(&report->machine));
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    return text;
}
