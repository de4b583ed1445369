/* A safetensors file's header from arbitrary bytes: accepted or refused with a message, and what is
 * accepted lies within the file. */
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const tensor *t, const uint8_t *data, size_t n)
{
    if (t->data < data || t->data > data + n || t->n_bytes > (size_t)(data + n - t->data)) abort();
    char text[64];
    if (strlen(shape_text(t->n_dims, t->shape, text, sizeof text)) >= sizeof text) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    tensor *tensors = NULL;
    int32_t n_tensors = 0;
    size_t capacity = 0;
    calla_error err = {0};
    calla_status status =
        safetensors_parse(data, n, "fuzz", 0, &tensors, &n_tensors, &capacity, &err);
    if (status == CALLA_OK) {
        for (int32_t i = 0; i < n_tensors; i++) check(&tensors[i], data, n);
    } else if (err.code != status || !err.message[0]) {
        abort();
    }
    tensors_free(tensors, n_tensors);
    return 0;
}
