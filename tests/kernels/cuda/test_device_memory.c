/* A thousand requests leave the device's memory as it was, and so does opening and closing. */
#include "support/backend.h"
#include "support/requests.h"
#include "support/support.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static size_t device_in_use(void)
{
    size_t n = 0, total = 0;
    assert_int_equal(cudaMemGetInfo(&n, &total), cudaSuccess);
    return total - n;
}

static void requests_leave_the_device_unchanged(void **state)
{
    (void)state;
    check_requests(device_in_use, 0);
    size_t closed = device_in_use();
    check_requests(device_in_use, 0);
    assert_int_equal(device_in_use(), closed);
}

int main(void)
{
    if (strcmp(test_ops()->name, "cuda") != 0) {
        printf("SKIP: CALLA_TEST_BACKEND is not cuda\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_leave_the_device_unchanged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
