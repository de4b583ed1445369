/* A thousand requests leave the process's memory as it was. */
#include "support/requests.h"
#include "support/support.h"

#include <malloc.h>

static size_t heap_in_use(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void requests_leave_the_heap_unchanged(void **state)
{
    (void)state;
    check_requests(heap_in_use, 1024); /* pieces differ by what is left over; 800 would not */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_leave_the_heap_unchanged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
