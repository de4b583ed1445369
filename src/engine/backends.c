/* The backends of this build, the one place that knows which there are. */
#include "engine/backend.h"

extern const backend_ops cpu_backend;

const backend_ops *const backends[] = {&cpu_backend, NULL};
