#include "support/backend.h"

#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const backend_ops *find(const char *name)
{
    for (int i = 0; backends[i]; i++)
        if (strcmp(backends[i]->name, name) == 0) return backends[i];
    return NULL;
}

/* Without a device nothing can be planned. */
static void require_device(const backend_ops *ops, const char *name)
{
    model_weights weights;
    calla_memory_plan plan;
    calla_error err;
    backend_options options = {.n_threads = 1, .n_ctx = 16, .n_sequences = 1, .prefill_chunk = 16};
    if (ops) {
        assert_ok(model_weights_open(source_path("tests/data/oracle-a/mlx4"), &weights, &err),
                  &err);
        calla_status status = ops->plan(&weights, &options, &plan, &err);
        model_weights_close(&weights);
        if (status == CALLA_OK) return;
        printf("SKIP: %s\n", err.message);
    } else {
        printf("SKIP: this build has no backend %s\n", name);
    }
    exit(77);
}

const backend_ops *test_ops(void)
{
    static const backend_ops *ops;
    const char *name = getenv("CALLA_TEST_BACKEND");
    if (ops) return ops;
    if (!name || !*name) name = "cpu";
    require_device(find(name), name);
    ops = find(name);
    return ops;
}

const char *test_backend(void)
{
    return test_ops()->name;
}

bool test_has_reference(void)
{
    return strcmp(test_backend(), "cpu") == 0;
}

const char *const *test_isas(void)
{
    return test_ops()->isa_names() + test_has_reference();
}

const char *test_plain_isa(void)
{
    return test_has_reference() ? "c" : "auto";
}
