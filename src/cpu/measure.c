/* The two ceilings of this machine, with the backend's threads and kernels: decode is bound by
 * reading weights, prefill by multiplying. Best of several passes: what disturbs a pass only slows
 * it. */
#include "base/clock.h"
#include "base/file.h"
#include "cpu/cpu.h"

#include <calla/model.h>

#include <string.h>
#include <unistd.h>

enum { PASSES = 6 };
/* Long against the start of a region, short for somebody who waits. */
static const int64_t MULTIPLY_NS = 20000000;

typedef struct measurement {
    const backend *b;
    size_t n_bytes;            /* that a pass reads */
    unsigned char *fill;       /* touch_part: [n_bytes] */
    const unsigned char *data; /* read_part: [n_bytes] */
    bool prefetch;
    int64_t n_rounds; /* multiply_part */
    _Atomic int64_t n_operations;
    _Atomic uint64_t sink; /* keeps results alive */
} measurement;

static void touch_part(void *context, int64_t begin, int64_t end, int thread)
{
    measurement *m = context;
    (void)thread;
    memset(m->fill + begin, 1, (size_t)(end - begin));
}

static void read_part(void *context, int64_t begin, int64_t end, int thread)
{
    measurement *m = context;
    (void)thread;
    m->sink ^= m->b->k.measure_read(m->data + begin, (size_t)(end - begin), m->prefetch);
}

static void multiply_part(void *context, int64_t begin, int64_t end, int thread)
{
    measurement *m = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float sink = 0.25f;
        m->n_operations += m->b->k.measure_multiply(m->n_rounds, &sink);
        uint32_t word;
        memcpy(&word, &sink, sizeof word);
        m->sink ^= word;
    }
}

/* Much more than the last-level cache: eight times, where its size is known. */
static size_t bytes_to_read(void)
{
    const size_t low = (size_t)256 << 20, high = (size_t)1 << 30;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0 || (size_t)cache > high / 8) return high;
    return (size_t)cache * 8 > low ? (size_t)cache * 8 / 4096 * 4096 : low;
}

/* Memory that is not there is given all the same, and ends the process when it is touched. */
static calla_status check_memory(size_t n_bytes, calla_error *err)
{
    calla_machine_info machine;
    calla_machine_get_info(&machine);
    int64_t available = machine.ram_available_bytes;
    if (available == 0 || (int64_t)n_bytes <= available) return CALLA_OK;
    return error_set(err, CALLA_ERR_MEMORY,
                     "measuring how fast memory is read takes %.2f GB of it, %.2f GB are available",
                     (double)n_bytes * 1e-9, (double)available * 1e-9);
}

/* Bytes per second. Passes go over one window of the data after the other. */
static double measure_read(measurement *m, const unsigned char *data, size_t n_bytes)
{
    double best = 0;
    size_t n_windows = n_bytes / m->n_bytes;
    for (size_t pass = 0; pass < 2 * PASSES; pass++) {
        m->data = data + pass / 2 % n_windows * m->n_bytes;
        m->prefetch = pass % 2;
        int64_t start = clock_ns();
        thread_pool_run(m->b->pool, (int64_t)m->n_bytes, 4096, read_part, m);
        double rate = (double)m->n_bytes * 1e9 / (double)(clock_ns() - start);
        if (rate > best) best = rate;
    }
    return best;
}

/* Operations per second. */
static double measure_multiply(measurement *m)
{
    double best = 0;
    int pass = 0;
    for (m->n_rounds = 1 << 10; pass < PASSES;) {
        m->n_operations = 0;
        int64_t start = clock_ns();
        thread_pool_run(m->b->pool, thread_pool_size(m->b->pool), 1, multiply_part, m);
        int64_t ns = clock_ns() - start;
        if (ns < MULTIPLY_NS / 2) {
            m->n_rounds *= 2;
            continue;
        }
        double rate = (double)m->n_operations * 1e9 / (double)ns;
        if (rate > best) best = rate;
        pass++;
    }
    return best;
}

calla_status cpu_measure(backend *b, calla_machine_rates *rates, calla_error *err)
{
    measurement m = {.b = b, .n_bytes = bytes_to_read()};
    mapped_file buffer = {0};
    const tensor_set *tensors = &b->weights->tensors;
    const mapped_file *data = &buffer;
    if (tensors->in_memory && tensors->files[0].map.n_bytes >= m.n_bytes) {
        data = &tensors->files[0].map;
    } else {
        CALLA_TRY(check_memory(m.n_bytes, err));
        CALLA_TRY(
            mapped_file_create_anonymous(m.n_bytes, "measuring memory", &buffer, &m.fill, err));
        thread_pool_run(b->pool, (int64_t)m.n_bytes, 4096, touch_part, &m);
    }
    *rates =
        (calla_machine_rates){.read_bytes_per_second = measure_read(&m, data->data, data->n_bytes)};
    mapped_file_close(&buffer);
    rates->matrix_operations_per_second = measure_multiply(&m);
    return CALLA_OK;
}
