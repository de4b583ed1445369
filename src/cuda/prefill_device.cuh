/* What the prefill kernels share on the device: copies into shared memory, matrix fragments,
 * barriers, conversions. Private to src/cuda. */
#ifndef CALLA_CUDA_PREFILL_DEVICE_CUH
#define CALLA_CUDA_PREFILL_DEVICE_CUH

#include "cuda/prefill_kernels.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

static inline __host__ __device__ int32_t ceil_div(int64_t a, int32_t b)
{
    return (int32_t)((a + b - 1) / b);
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- launches ---- */

/* Whether the device can begin a kernel while the one before it in the stream ends. Set by
 * prefill_device_init. */
extern bool device_overlaps_launches;

/* Begins such a kernel, whose first act is wait_for_stream. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static cudaError_t launch(void (*kernel)(PARAMETERS...), dim3 grid, unsigned threads,
                          size_t shared_bytes, cudaStream_t stream, ARGUMENTS... arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = device_overlaps_launches ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, PARAMETERS(arguments)...);
}

/* Until all before this kernel is done and can be read; then the next one's blocks may take the
 * places that this one's leave. */
__device__ __forceinline__ void wait_for_stream()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- numbers ---- */

/* Magnitudes beyond 65504 clamped; NaN and infinity are NaN (v - v is 0 for finite v). */
__device__ __forceinline__ float clamp_half(float v)
{
    float w = v;
    asm("min.NaN.f32 %0, %0, 0f477FE000;\n\tmax.NaN.f32 %0, %0, 0fC77FE000;" : "+f"(w));
    return w + (v - v);
}

__device__ __forceinline__ __half to_half(float v)
{
    return __float2half_rn(clamp_half(v));
}

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x)) + (x - x); /* an overflowed gate is neither open nor shut */
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x)) + (x - x);
}

/* To 2^-20, which is enough for a result that becomes a half. Infinities stay or become NaN. */
__device__ __forceinline__ float silu_fast(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

__device__ __forceinline__ uint32_t half2_bits(__half2 v)
{
    return *reinterpret_cast<uint32_t *>(&v);
}

__device__ __forceinline__ __half2 bits_half2(uint32_t v)
{
    return *reinterpret_cast<__half2 *>(&v);
}

/* v as high + low halves: 22 bits, or 2^-25 where that is more. */
__device__ __forceinline__ void split_half(float v, __half &high, __half &low)
{
    float w = clamp_half(v);
    high = __float2half_rn(w);
    low = __float2half_rn(w - __half2float(high));
}

/* Number c of a row of split halves; its low half is SPLIT_GROUP behind. */
__device__ __forceinline__ int32_t split_column(int32_t c)
{
    return c / SPLIT_GROUP * (2 * SPLIT_GROUP) + c % SPLIT_GROUP;
}

/* Numbers c and c + 1, or c ... c + 3, of a row of split halves; c is a multiple of 2, or 4. */
__device__ __forceinline__ void store_split2(__half *row, int32_t c, float v0, float v1)
{
    __half h[2], l[2];
    split_half(v0, h[0], l[0]);
    split_half(v1, h[1], l[1]);
    __half *to = row + split_column(c);
    *(__half2 *)to = __halves2half2(h[0], h[1]);
    *(__half2 *)(to + SPLIT_GROUP) = __halves2half2(l[0], l[1]);
}
__device__ __forceinline__ void store_split4(__half *row, int32_t c, float4 v)
{
    __half h[4], l[4];
    split_half(v.x, h[0], l[0]);
    split_half(v.y, h[1], l[1]);
    split_half(v.z, h[2], l[2]);
    split_half(v.w, h[3], l[3]);
    __half *to = row + split_column(c);
    *(uint2 *)to =
        make_uint2(half2_bits(__halves2half2(h[0], h[1])), half2_bits(__halves2half2(h[2], h[3])));
    *(uint2 *)(to + SPLIT_GROUP) =
        make_uint2(half2_bits(__halves2half2(l[0], l[1])), half2_bits(__halves2half2(l[2], l[3])));
}

__device__ __forceinline__ float warp_sum(float v)
{
    for (int i = 16; i > 0; i >>= 1) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* ---- copies to shared memory ---- */

__device__ __forceinline__ void copy16_async(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy16_or_zero_async(uint32_t to, const void *from, bool copy)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(copy ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- matrix fragments ---- */

__device__ __forceinline__ void load_matrix4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_matrix4_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* d += a b: a 16 x 16, b 16 x 8, d 16 x 8. */
__device__ __forceinline__ void multiply_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Of a lane's two rows of a strip what takes codes to halves, over the strip's factor: the scale
 * times 2^24 for row 0 and 2^20 for row 1, then the bias. */
typedef struct row_pair {
    __half2 row[2];
} row_pair;

__device__ __forceinline__ row_pair make_row_pair(uint32_t first, uint32_t second,
                                                  float inverse_factor)
{
    row_pair p;
    p.row[0] = __floats2half2_rn(__uint_as_float(first << 16) * (inverse_factor * 0x1p24f),
                                 __uint_as_float(first & 0xffff0000u) * inverse_factor);
    p.row[1] = __floats2half2_rn(__uint_as_float(second << 16) * (inverse_factor * 0x1p20f),
                                 __uint_as_float(second & 0xffff0000u) * inverse_factor);
    return p;
}

/* Codes of a row in their places within halves to weights. */
__device__ __forceinline__ uint32_t scale_codes(uint32_t codes, __half2 row)
{
    return half2_bits(__hfma2(bits_half2(codes), __low2half2(row), __high2half2(row)));
}

/* One word of codes (cuda/layout.h) to an A fragment. As a half the bits of q are exactly q 2^-24,
 * those of q << 4 exactly q 2^-20 (subnormal numbers, which cost nothing here): one instruction
 * multiplies, adds and rounds once. */
__device__ __forceinline__ void dequantize_word(uint32_t (&a)[4], uint32_t codes, const row_pair &p)
{
    uint32_t high = codes >> 8;
    a[0] = scale_codes(codes & 0x000f000fu, p.row[0]);
    a[1] = scale_codes(codes & 0x00f000f0u, p.row[1]);
    a[2] = scale_codes(high & 0x000f000fu, p.row[0]);
    a[3] = scale_codes(high & 0x00f000f0u, p.row[1]);
}

/* ---- barriers in shared memory (sm_90) ---- */

#if HAS_WGMMA
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n_arrivals)
                 : "memory");
}

/* Its memory may become another barrier. */
__device__ __forceinline__ void barrier_end(uint32_t barrier)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(n_bytes)
                 : "memory");
}

/* Arrives when this thread's cp.async copies so far have landed: the copies count as one arrival
 * more, which is expected from now on. */
__device__ __forceinline__ void barrier_arrive_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    barrier_arrive(barrier);
}

/* A warp's one arrival, after what all its lanes did. */
__device__ __forceinline__ void barrier_arrive_warp(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "wait:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
                 "@!p bra wait;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t n_bytes,
                                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

/* What ordinary stores and cp.async wrote becomes visible to wgmma. */
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#endif
