/* What the two kernels of the recurrence in chunks share (prefill_gdn_chunk.cu). Private to
 * src/cuda. */
#ifndef CALLA_CUDA_PREFILL_GDN_CHUNK_CUH
#define CALLA_CUDA_PREFILL_GDN_CHUNK_CUH

#include "cuda/prefill_gdn.cuh"

enum {
    CHUNK = 64,
    KEY_PLANE = CHUNK * HEAD * 2,     /* bytes of K or Q in one bf16 */
    KEY_BLOCK = CHUNK * 128,          /* of 64 of their dims */
    SQUARE_PLANE = CHUNK * CHUNK * 2, /* of T or P */
};

/* Workspace of a segment of chunks: [chunks][key heads] of k, q and [chunks][value heads] of the
 * rest. A plane is in the order it has in shared memory: rows of 128 bytes, 16-byte pieces swapped
 * by row % 8; K and Q as two such blocks of 64 dims. */
typedef struct key_parts {
    unsigned char k[2][KEY_PLANE], q[2][KEY_PLANE]; /* high, low */
} key_parts;
typedef struct square_parts {
    unsigned char t[2][SQUARE_PLANE], p[2][SQUARE_PLANE];
} square_parts;
typedef struct chunk_gates {
    float growth[CHUNK]; /* e^G_i */
    float rest[CHUNK];   /* e^(G_C - G_i) */
    float beta[CHUNK];
} chunk_gates;

typedef struct chunk_workspace {
    key_parts *keys;
    square_parts *squares;
    chunk_gates *gates;
} chunk_workspace;

/* Tokens [begin, begin + n) of the call are those of its chunk c. */
static __device__ __forceinline__ int32_t chunk_begin(const prefill_gdn_args &a, int32_t c,
                                                      int32_t *n)
{
    int64_t start = (a.first / CHUNK + c) * CHUNK, end = start + CHUNK;
    int64_t begin = max(start, a.first), stop = min(end, a.first + a.n_tokens);
    *n = (int32_t)(stop - begin);
    return (int32_t)(begin - a.first);
}

/* Two f32 as a pair of bf16 and a pair of what that leaves. */
static __device__ __forceinline__ void split_pair(float x, float y, uint32_t &high, uint32_t &low)
{
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y), "f"(x));
    x -= __uint_as_float(high << 16);
    y -= __uint_as_float(high & 0xffff0000u);
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(y), "f"(x));
}

/* Offsets of 16-byte pieces within planes of 16 and 8 pieces a row. */
static __device__ __forceinline__ uint32_t key_piece(int row, int piece)
{
    return (uint32_t)(piece / 8 * KEY_BLOCK + row * 128 + ((piece % 8 ^ (row & 7)) << 4));
}
static __device__ __forceinline__ uint32_t square_piece(int row, int piece)
{
    return (uint32_t)(row * CHUNK * 2 + ((piece ^ (row & 7)) << 4));
}

/* Right operands of COUNT pairs of n8 columns, both parts. */
template <int COUNT> struct split_operands {
    uint32_t high[COUNT][4], low[COUNT][4];
};

/* d[2 i], d[2 i + 1] += a b[i], in three rounds of products that do not wait for each other. */
template <int COUNT>
static __device__ __forceinline__ void multiply_split(float (*d)[4], const uint32_t (&a)[2][4],
                                                      const split_operands<COUNT> &b)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        multiply_bf16(d[2 * i], a[0], b.low[i][0], b.low[i][1]);
        multiply_bf16(d[2 * i + 1], a[0], b.low[i][2], b.low[i][3]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        multiply_bf16(d[2 * i], a[1], b.high[i][0], b.high[i][1]);
        multiply_bf16(d[2 * i + 1], a[1], b.high[i][2], b.high[i][3]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        multiply_bf16(d[2 * i], a[0], b.high[i][0], b.high[i][1]);
        multiply_bf16(d[2 * i + 1], a[0], b.high[i][2], b.high[i][3]);
    }
}

/* The walk over n_chunks prepared chunks on Hopper, from state_in (NULL: zeros) to args->state_out;
 * only where prefill_gdn_has_hopper, after prefill_gdn_hopper_init. */
bool prefill_gdn_has_hopper(const prefill_device *device);
cudaError_t prefill_gdn_hopper_init();
cudaError_t prefill_gdn_hopper_walk(const prefill_gdn_args *args, const chunk_workspace *workspace,
                                    int32_t first_chunk, int32_t n_chunks, const float *state_in,
                                    cudaStream_t stream);

cudaError_t prefill_gdn_prepare_init();
/* n_chunks chunks from first_chunk of the call on, to the workspace. */
cudaError_t prefill_gdn_prepare(const prefill_gdn_args *args, const chunk_workspace *workspace,
                                int32_t first_chunk, int32_t n_chunks, cudaStream_t stream);

#endif
