/* The tokenizer's files of a synthetic checkpoint, in the form of the real ones (MODEL.md 5). */
#ifndef CALLA_MODEL_SYNTH_TOKENIZER_H
#define CALLA_MODEL_SYNTH_TOKENIZER_H

#include "model/synth_shape.h"

/* tokenizer.json and tokenizer_config.json, malloc'ed. */
calla_status synth_tokenizer_text(const synth_shape *shape, char **text, size_t *n_bytes,
                                  calla_error *err);
calla_status synth_tokenizer_config_text(const synth_shape *shape, char **text, size_t *n_bytes,
                                         calla_error *err);

#endif
