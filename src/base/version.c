#include <calla/calla.h>

const char *calla_version(void)
{
    return CALLA_VERSION;
}
