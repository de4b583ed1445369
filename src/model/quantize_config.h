/* config.json of a quantized checkpoint. */
#ifndef CALLA_MODEL_QUANTIZE_CONFIG_H
#define CALLA_MODEL_QUANTIZE_CONFIG_H

#include "model/config.h"

/* src/config.json as mlx-lm writes it after quantization (MODEL.md 2.2 item 6): without
 * vision_config and _name_or_path, with eos_token_id of src/generation_config.json at the top level
 * where that file has one, and with "quantization" and an equal "quantization_config". All other
 * keys keep value and order. *text is malloc'ed. */
calla_status quantized_config_text(const char *src, const model_config *config, char **text,
                                   size_t *n_bytes, calla_error *err);

/* Adds the "quantization" object and its twin to the JSON text of a config.json: *out is malloc'ed.
 */
calla_status quantization_add_text(const char *config_text, const model_config *config, char **out,
                                   size_t *n_bytes, calla_error *err);

#endif
