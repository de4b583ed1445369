/* What the machine could do, and where the time goes. */
#include "engine/engine.h"

calla_status calla_engine_measure(calla_engine *e, calla_machine_rates *rates, calla_error *err)
{
    engine_settle(e);
    if (e->ops->measure) return e->ops->measure(e->backend, rates, err);
    return error_set(err, CALLA_ERR_UNSUPPORTED, "backend %s cannot measure the machine",
                     e->ops->name);
}

void calla_engine_set_profile(calla_engine *e, bool on)
{
    engine_settle(e);
    e->profiling = on;
    e->sampling = (calla_profile_entry){0};
    if (e->ops->set_profile) e->ops->set_profile(e->backend, on);
}

void calla_engine_get_profile(calla_engine *e, const calla_profile_entry **entries, int32_t *n)
{
    int32_t n_backend = e->ops->get_profile ? e->ops->get_profile(e->backend, e->profile) : 0;
    e->profile[n_backend] = e->sampling;
    e->profile[n_backend].name = "sampling";
    *entries = e->profile;
    *n = n_backend + 1;
}
