/* A detector for a group of tests. */
#ifndef CALLA_TESTS_HYBRID_DETECTOR_H
#define CALLA_TESTS_HYBRID_DETECTOR_H

/* Setup and teardown of a cmocka group whose state is the detector. On a processor that the pattern
 * library cannot use the program ends as skipped. */
int create_detector(void **state);
int free_detector(void **state);

#endif
