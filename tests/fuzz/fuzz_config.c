/* config.json from arbitrary bytes: accepted or refused with a message, and what is accepted has
 * sizes that later products cannot overflow. */
#include "model/config.h"
#include "model/inventory.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    model_config c;
    calla_error err = {0};
    calla_status status = model_config_parse((const char *)data, n, "fuzz", &c, &err);
    if (status != CALLA_OK) {
        if (err.code != status || !err.message[0]) abort();
        return 0;
    }
    if (c.n_layers < 1 || c.n_layers > MAX_LAYERS || c.n_experts_per_token > c.n_experts) abort();
    model_sizes sizes;
    model_sizes_compute(&c, CALLA_LAYOUT_BF16, &sizes);
    if (sizes.token_bytes <= 0 || sizes.token_bytes > sizes.text_bytes) abort();
    return 0;
}
