/* The backends of this build, the one place that knows which there are. */
#include "engine/backend.h"

extern const backend_ops cpu_backend;
#ifdef CALLA_HAVE_CUDA
extern const backend_ops cuda_backend;
#endif

const backend_ops *const backends[] = {
#ifdef CALLA_HAVE_CUDA
    &cuda_backend,
#endif
    &cpu_backend, NULL};
