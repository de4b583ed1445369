/* wgmma of sm_90a: d (64 x N, f32) += a (64 x 16, half) b (16 x N, half). A warpgroup's lane has of
 * row 16 w + i / 4 + 8 h, column 8 c + 2 (i % 4) + j the element d[4 c + 2 h + j]. b, and a where
 * it is not in registers, are shared memory descriptors; b is stored by columns, or by rows if
 * TRANSPOSED_B. Asynchronous: wgmma_fence before, wgmma_commit and wgmma_wait after. */
#ifndef CALLA_CUDA_PREFILL_WGMMA_CUH
#define CALLA_CUDA_PREFILL_WGMMA_CUH

#include "cuda/prefill_device.cuh"

#if HAS_WGMMA

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most PENDING of the latest groups are running. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps uses of finished results behind the wait. */
template <int N> __device__ __forceinline__ void wgmma_results(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Rows of 128 bytes, 16-byte pieces of row r swapped by r % 8, groups of 8 rows `stride` bytes
 * apart; the address is a multiple of 1,024 plus a step within a row. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t stride)
{
    return (uint64_t)1 << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 16 |
           (address & 0x3ffff) >> 4;
}

/* The same for an operand whose outer dimension is contiguous: blocks of 64 of it, 128 bytes, lie
 * block_bytes apart, groups of 8 of the inner dimension group_bytes. */
__device__ __forceinline__ uint64_t wgmma_descriptor_blocks(uint32_t address, uint32_t block_bytes,
                                                            uint32_t group_bytes)
{
    return (uint64_t)1 << 62 | (uint64_t)(group_bytes >> 4) << 32 |
           (uint64_t)(block_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

/* The elements of d as operands (c: "+f", or "=f" where they are only written), and their places in
 * the text of an instruction. */
#define WGMMA_D4(c, i)  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define WGMMA_D8(c, i)  WGMMA_D4(c, i), WGMMA_D4(c, i + 4)
#define WGMMA_D16(c, i) WGMMA_D8(c, i), WGMMA_D8(c, i + 8)
#define WGMMA_D32(c, i) WGMMA_D16(c, i), WGMMA_D16(c, i + 16)
#define WGMMA_D64(c, i) WGMMA_D32(c, i), WGMMA_D32(c, i + 32)
/* clang-format off */
#define WGMMA_PLACES8 \
    "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_PLACES12 \
    WGMMA_PLACES8 \
    ", %8, %9, %10, %11"
#define WGMMA_PLACES16 \
    WGMMA_PLACES8 \
    ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_PLACES20 \
    WGMMA_PLACES16 \
    ", %16, %17, %18, %19"
#define WGMMA_PLACES32 \
    WGMMA_PLACES16 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_PLACES36 \
    WGMMA_PLACES32 \
    ", %32, %33, %34, %35"
#define WGMMA_PLACES48 \
    WGMMA_PLACES32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_PLACES64 \
    WGMMA_PLACES48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_PLACES68 \
    WGMMA_PLACES64 \
    ", %64, %65, %66, %67"
#define WGMMA_PLACES128 \
    WGMMA_PLACES64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* clang-format on */

/* One function a width N: the text counts operands, so it has the numbers of those behind d. */
#define WGMMA_REGISTERS(N, ELEMENTS, PLACES, BEHIND, ...)                                          \
    template <int TRANSPOSED_B>                                                                    \
    __device__ __forceinline__ void wgmma_registers(float(&d)[ELEMENTS], const uint32_t(&a)[4],    \
                                                    uint64_t b)                                    \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 1, 1;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" PLACES             \
                     "}, " BEHIND ";\n}"                                                           \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED_B));     \
    }
#define WGMMA_SHARED(N, ELEMENTS, PLACES, BEHIND, ...)                                             \
    template <int TRANSPOSED_B>                                                                    \
    __device__ __forceinline__ void wgmma_shared(float(&d)[ELEMENTS], uint64_t a, uint64_t b)      \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 1, 1;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" PLACES             \
                     "}, " BEHIND ";\n}"                                                           \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "n"(TRANSPOSED_B));                                         \
    }

WGMMA_REGISTERS(24, 12, WGMMA_PLACES12, "{%12, %13, %14, %15}, %16, p, 1, 1, %17",
                WGMMA_D8("+f", 0), WGMMA_D4("+f", 8))
WGMMA_REGISTERS(40, 20, WGMMA_PLACES20, "{%20, %21, %22, %23}, %24, p, 1, 1, %25",
                WGMMA_D16("+f", 0), WGMMA_D4("+f", 16))
WGMMA_REGISTERS(64, 32, WGMMA_PLACES32, "{%32, %33, %34, %35}, %36, p, 1, 1, %37",
                WGMMA_D32("+f", 0))
WGMMA_REGISTERS(72, 36, WGMMA_PLACES36, "{%36, %37, %38, %39}, %40, p, 1, 1, %41",
                WGMMA_D32("+f", 0), WGMMA_D4("+f", 32))
WGMMA_REGISTERS(96, 48, WGMMA_PLACES48, "{%48, %49, %50, %51}, %52, p, 1, 1, %53",
                WGMMA_D32("+f", 0), WGMMA_D16("+f", 32))
WGMMA_REGISTERS(128, 64, WGMMA_PLACES64, "{%64, %65, %66, %67}, %68, p, 1, 1, %69",
                WGMMA_D64("+f", 0))
WGMMA_REGISTERS(256, 128, WGMMA_PLACES128, "{%128, %129, %130, %131}, %132, p, 1, 1, %133",
                WGMMA_D64("+f", 0), WGMMA_D64("+f", 64))
WGMMA_SHARED(64, 32, WGMMA_PLACES32, "%32, %33, p, 1, 1, 0, %34", WGMMA_D32("+f", 0))
WGMMA_SHARED(128, 64, WGMMA_PLACES64, "%64, %65, p, 1, 1, 0, %66", WGMMA_D64("+f", 0))

#undef WGMMA_REGISTERS
#undef WGMMA_SHARED

#endif

#endif
