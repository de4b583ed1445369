#include "engine/load.h"

#include "base/log.h"
#include "model/residence.h"

#include <calla/model.h>

#include <stdio.h>

/* A copy saves some per cent of decode's time for a second or more at the start, and only where
 * memory is measured in huge pages at all. */
static const int64_t WORTH_COPYING_BYTES = (int64_t)1 << 30;

static double gb(int64_t bytes)
{
    return (double)bytes * 1e-9;
}

calla_status load_decide(const load_facts *f, calla_load load, calla_warm_up warm_up,
                         load_decision *d, calla_error *err)
{
    int64_t needed = f->weights + f->other;
    bool known = f->available > 0, room = known && needed + f->weights <= f->available;
    *d = (load_decision){.fits = !known || needed <= f->available};
    if (f->ram > 0 && f->other > f->ram)
        return error_set(err, CALLA_ERR_MEMORY,
                         "the model needs %.2f GB of memory besides its weights, %s has %.2f GB: a "
                         "shorter context or fewer sessions need less",
                         gb(f->other), f->limited ? "this control group" : "the machine",
                         gb(f->ram));
    if (load == CALLA_LOAD_COPY && !d->fits)
        return error_set(err, CALLA_ERR_MEMORY,
                         "a copy needs %.2f GB of memory (weights %.2f GB), %.2f GB are available",
                         gb(needed), gb(f->weights), gb(f->available));
    d->copy = load == CALLA_LOAD_COPY ||
              (load == CALLA_LOAD_AUTO && room && f->weights >= WORTH_COPYING_BYTES);
    d->keep_cached = room;
    if (!d->copy) {
        d->warm_all = warm_up == CALLA_WARM_UP_ALWAYS || (warm_up == CALLA_WARM_UP_AUTO && d->fits);
        d->warm_every_token = warm_up == CALLA_WARM_UP_AUTO && !d->fits;
    }
    /* Locked memory cannot give way: leave a good part to the rest. */
    d->lock = f->every_token <= f->lockable &&
              (!known || f->every_token + f->other <= f->available / 4 * 3);
    return CALLA_OK;
}

/* ---- doing it ---- */

typedef struct progress {
    const calla_engine_options *options;
    const char *phase;
} progress;

static void report(void *user, int64_t done, int64_t total)
{
    const progress *p = user;
    p->options->progress(p->options->progress_user, p->phase, done, total);
}

static void read_facts(const model_weights *w, int64_t other_bytes, load_facts *f,
                       calla_machine_info *machine)
{
    calla_machine_get_info(machine);
    *f = (load_facts){.weights = w->text_bytes,
                      .every_token = weights_part_bytes(w, WEIGHTS_EVERY_TOKEN),
                      .other = other_bytes,
                      .ram = machine->ram_bytes,
                      .available = machine->ram_available_bytes,
                      .lockable = machine->lockable_bytes,
                      .limited = machine->ram_is_limited};
}

static void warn(const char *dir, const load_facts *f, const load_decision *d,
                 const calla_machine_info *machine)
{
    char locking[160] = "";
    if (!d->lock && f->every_token > f->lockable)
        snprintf(locking, sizeof locking,
                 "; the %.2f GB that every token needs cannot be kept there: %.2f GB may be locked "
                 "(ulimit -l)",
                 gb(f->every_token), gb(f->lockable));
    log_warn("%s takes %.2f GB of memory (weights %.2f GB), %.2f GB are available%s: weights will "
             "be read from disk over and over%s",
             dir, gb(f->weights + f->other), gb(f->weights), gb(f->available),
             machine->ram_is_limited ? " in this control group" : "", locking);
}

static calla_status bring_in(model_weights *w, const load_decision *d,
                             const calla_engine_options *options, calla_error *err)
{
    progress p = {options, d->copy ? "copying weights" : "reading weights ahead"};
    load_control control = {
        .progress = options->progress ? report : NULL, .user = &p, .cancel = options->cancel};
    if (d->copy) return weights_copy(w, d->keep_cached, &control, err);
    if (d->warm_all) return weights_warm_up(w, WEIGHTS_ALL, &control, err);
    if (d->warm_every_token) return weights_warm_up(w, WEIGHTS_EVERY_TOKEN, &control, err);
    return CALLA_OK;
}

calla_status engine_load(model_weights *w, int64_t other_bytes, const calla_engine_options *options,
                         calla_engine_info *info, calla_error *err)
{
    load_facts facts;
    load_decision decision;
    calla_machine_info machine;
    if (w->tensors.in_memory) {
        w->resident = true;
        return CALLA_OK;
    }
    read_facts(w, other_bytes, &facts, &machine);
    CALLA_TRY(load_decide(&facts, options->load, options->warm_up, &decision, err));
    if (!decision.fits) warn(w->tensors.dir, &facts, &decision, &machine);
    info->locked_bytes = 0;
    /* Before they are read ahead, so that what comes later does not push them out. */
    if (decision.lock && !decision.copy) info->locked_bytes = weights_lock(w, WEIGHTS_EVERY_TOKEN);
    CALLA_TRY(bring_in(w, &decision, options, err));
    if (decision.lock && decision.copy) info->locked_bytes = weights_lock(w, WEIGHTS_EVERY_TOKEN);
    info->copied = decision.copy;
    info->short_of_memory = !decision.fits;
    w->resident = decision.copy || (decision.warm_all && decision.fits);
    return CALLA_OK;
}
