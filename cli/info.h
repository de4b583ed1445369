/* What calla info gathers, and its two forms of output. */
#ifndef CALLA_CLI_INFO_H
#define CALLA_CLI_INFO_H

#include "cli.h"

#include <jansson.h>

enum { INFO_PARTS = 10 };

typedef struct info_report {
    const char *model; /* directory, or NULL: the machine alone */
    calla_checkpoint_info checkpoint;
    struct info_part {
        const char *name;
        int64_t n_tensors, n_bytes;
    } parts[INFO_PARTS]; /* [n_parts] of them not empty */
    int32_t n_parts;
    calla_memory_plan plan;
    calla_machine_info machine;
} info_report;

/* One tensor as a JSON object; NULL when out of memory. */
json_t *info_tensor_json(const calla_tensor_info *tensor);
/* The report as JSON text, malloc'ed; NULL when out of memory. `tensors`, an array or NULL, is
 * included. */
char *info_report_json(const info_report *report, json_t *tensors);

#endif
