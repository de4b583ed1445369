/* calla_engine_open_synthetic: an engine whose weights are made in memory. */
#include "base/clock.h"
#include "engine/engine.h"
#include "model/synth.h"

#include <calla/model.h>

static void report_filling(void *user, int64_t done, int64_t total)
{
    const calla_engine_options *o = user;
    o->progress(o->progress_user, "making weights", done, total);
}

/* The memory is taken page by page as it is filled, so that too much of it would end in the
 * system's hands and not in an error. */
static calla_status check_memory(const model_weights *weights, const calla_engine_options *options,
                                 calla_error *err)
{
    calla_memory_plan plan;
    calla_machine_info machine;
    CALLA_TRY(engine_plan(backends, weights, options, &plan, err));
    calla_machine_get_info(&machine);
    int64_t available = machine.ram_available_bytes;
    int64_t needed = weights->text_bytes; /* made here whatever the backend */
    if (!plan.on_device) needed += plan.total_bytes - plan.weights_bytes;
    if (available == 0 || needed <= available) return CALLA_OK;
    return error_set(err, CALLA_ERR_MEMORY,
                     "the model needs %.2f GB of memory (weights %.2f GB), %.2f GB are available",
                     (double)needed * 1e-9, (double)weights->text_bytes * 1e-9,
                     (double)available * 1e-9);
}

calla_status calla_engine_open_synthetic(const char *shape, uint64_t seed,
                                         const calla_engine_options *options, calla_engine **engine,
                                         calla_error *err)
{
    int64_t start_ns = clock_ns();
    const calla_engine_options none = {0};
    if (!options) options = &none;
    synthesizer *s;
    model_weights weights;
    engine_vocabulary vocabulary = {.turn_token = -1};
    CALLA_TRY(synthesizer_create(shape, seed, &s, &weights, &vocabulary.n_tokens, err));
    calla_write_options write = {.progress = options->progress ? report_filling : NULL,
                                 .user = (void *)(uintptr_t)options,
                                 .cancel = options->cancel};
    calla_status status = check_memory(&weights, options, err);
    if (status == CALLA_OK) status = synthesizer_fill(s, &write, err);
    synthesizer_free(s);
    if (status != CALLA_OK) {
        model_weights_close(&weights);
        return status;
    }
    calla_engine *e;
    CALLA_TRY(engine_create(backends, &weights, vocabulary, options, &e, err));
    e->info.load_ns = clock_ns() - start_ns;
    *engine = e;
    return CALLA_OK;
}
