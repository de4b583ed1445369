/* Which addresses the cloud may have. */
#ifndef CALLA_HYBRID_UPSTREAM_URL_H
#define CALLA_HYBRID_UPSTREAM_URL_H

#include "base/error.h"

/* Takes a base URL apart. *base is it without a slash at its end, *origin its scheme, host and port
 * (both malloc'ed). Refused: other schemes than https and http, http beyond this machine, names and
 * passwords, queries and fragments. */
calla_status upstream_url_check(const char *url, char **base, char **origin, calla_error *err);

#endif
