#include "hybrid/detector.h"

#include "hybrid/detect/detect.h"

#include <stdio.h>
#include <stdlib.h>

int create_detector(void **state)
{
    calla_error err;
    calla_status status = detector_create((detector **)state, &err);
    if (status == CALLA_ERR_UNSUPPORTED) {
        printf("SKIP: %s\n", err.message);
        exit(77);
    }
    return status != CALLA_OK;
}

int free_detector(void **state)
{
    detector_free(*state);
    return 0;
}
