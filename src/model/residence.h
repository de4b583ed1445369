/* Where a checkpoint's bytes are while the model runs: mapped from the files and paged in by the
 * system as they are used, mapped and read ahead, or copied into memory of our own. */
#ifndef CALLA_MODEL_RESIDENCE_H
#define CALLA_MODEL_RESIDENCE_H

#include "base/file_load.h"
#include "model/weights.h"

typedef enum weights_part {
    WEIGHTS_ALL,
    WEIGHTS_EVERY_TOKEN, /* all but the routed experts and the embedding: read for every token */
} weights_part;

/* Bytes of the part. */
int64_t weights_part_bytes(const model_weights *weights, weights_part part);

/* See files_warm_up, files_copy, files_lock: for the tensors that the model uses, of a checkpoint
 * opened from files. What the views point at stays at its address. */
calla_status weights_warm_up(model_weights *weights, weights_part part, const load_control *control,
                             calla_error *err);
calla_status weights_copy(model_weights *weights, bool keep_cached, const load_control *control,
                          calla_error *err);
/* Returns the bytes locked. */
int64_t weights_lock(model_weights *weights, weights_part part);

#endif
