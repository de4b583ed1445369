/* Many requests to one engine, as a server sees them, for tests of what they leave behind. */
#ifndef CALLA_TESTS_REQUESTS_H
#define CALLA_TESTS_REQUESTS_H

#include <calla/calla.h>

#include <stddef.h>

/* Opens oracle-a on the backend under test and runs 1,000 requests: prompts of all lengths, shared
 * in part, some cancelled or refused; answers one by one and in batches, with every way to sample;
 * sessions that end in the middle of one. Fails if `in_use`, bytes of whatever memory, differs by
 * more than `slack` between request 200 and the last. */
void check_requests(size_t (*in_use)(void), size_t slack);

#endif
