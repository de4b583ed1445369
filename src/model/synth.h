/* A synthetic model in memory: what calla_synth would write, without the files. */
#ifndef CALLA_MODEL_SYNTH_H
#define CALLA_MODEL_SYNTH_H

#include "model/weights.h"

typedef struct synthesizer synthesizer;

/* Plans a model of a shape in layout MLX4 and makes its weights' views of memory that is not taken
 * yet: until synthesizer_fill their values are zero. The weights are the caller's, to be closed
 * after the synthesizer. *n_tokens: ids below it would be real tokens. */
calla_status synthesizer_create(const char *shape, uint64_t seed, synthesizer **out,
                                model_weights *weights, int32_t *n_tokens, calla_error *err);
/* Fills in the values, on all processors; of `options` the cancel flag and the progress count. */
calla_status synthesizer_fill(synthesizer *s, const calla_write_options *options, calla_error *err);
void synthesizer_free(synthesizer *s);

#endif
