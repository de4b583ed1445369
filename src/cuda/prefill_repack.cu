/* From the checkpoint's layout to the order of matrix fragments, once, at upload. */
#include "cuda/prefill_device.cuh"

static __device__ __forceinline__ float bf16_value(uint16_t v)
{
    return __uint_as_float((uint32_t)v << 16);
}

/* The largest value of the block's threads; in every thread. */
static __device__ float block_max(float v)
{
    __shared__ float part[32];
    for (int i = 16; i > 0; i >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) v = fmaxf(v, part[i]);
    return v;
}

/* The power of two to divide a row by whose largest magnitude is `largest`. */
static __device__ float row_factor_of(float largest)
{
    if (!(largest > 0) || isinf(largest)) return 1.0f;
    int e = ilogbf(largest) - 7;
    return ldexpf(1.0f, e < -126 ? -126 : e);
}

/* A block packs one row: gridDim.x rows, gridDim.y matrices. */
static __global__ void repack_kernel(raw_matrices from, packed_matrix to, int32_t first_matrix,
                                     int32_t first_row, int32_t row_stride)
{
    int64_t source = (int64_t)blockIdx.y * from.rows + blockIdx.x;
    int32_t row = first_row + (int32_t)blockIdx.x * row_stride, groups = from.cols / 64;
    int64_t matrix = first_matrix + (int64_t)blockIdx.y;
    const uint16_t *scales = from.scales + source * groups, *biases = from.biases + source * groups;
    const uint16_t *elements = (const uint16_t *)from.codes + source * from.cols;
    const unsigned char *codes = (const unsigned char *)from.codes + source * (from.cols / 2);
    bool quantized = from.scales != NULL;

    float largest = 0;
    for (int32_t g = threadIdx.x; quantized && g < groups; g += blockDim.x) {
        float s = bf16_value(scales[g]), b = bf16_value(biases[g]);
        largest = fmaxf(largest, fmaxf(fabsf(b), fabsf(b + 15 * s)));
    }
    for (int32_t c = threadIdx.x; !quantized && c < from.cols; c += blockDim.x)
        largest = fmaxf(largest, fabsf(bf16_value(elements[c])));
    float factor = row_factor_of(block_max(largest)), inverse = 1.0f / factor;

    int32_t tiles = packed_row_tiles(&to), block_bytes = packed_block_bytes(to.format);
    if (threadIdx.x == 0) to.row_factor[matrix * tiles * PACKED_TILE_ROWS + row] = factor;
    unsigned char *tile = to.data + matrix * packed_data_bytes(&to) +
                          (int64_t)(row / PACKED_TILE_ROWS) * groups * 4 * block_bytes +
                          (row % PACKED_TILE_ROWS) / 64 * block_bytes;
    int32_t first_lane = row % 64 / 16 * 32 + row % 16 / 2 * 4, second = row % 2;
    /* A thread packs four columns: those of one lane in one step of 16. */
    for (int32_t i = threadIdx.x; i < from.cols / 4; i += blockDim.x) {
        int32_t step = i / 4, lane = first_lane + i % 4;
        unsigned char *block = tile + (int64_t)(step / 4) * 4 * block_bytes;
        if (quantized) {
            uint32_t a = codes[step * 8 + i % 4], b = codes[step * 8 + i % 4 + 4];
            uint32_t word = (a & 15) | (a >> 4) << 16 | (b & 15) << 8 | (b >> 4) << 24;
            /* The rows of a pair write different bits of the same word. */
            atomicOr((uint32_t *)block + lane * 4 + step % 4, word << 4 * second);
        } else {
            const uint16_t *e = elements + step * 16 + i % 4 * 2;
            __half2 *out = (__half2 *)block + (step % 4 * 128 + lane) * 4 + second;
            out[0] = __halves2half2(to_half(bf16_value(e[0]) * inverse),
                                    to_half(bf16_value(e[1]) * inverse));
            out[2] = __halves2half2(to_half(bf16_value(e[8]) * inverse),
                                    to_half(bf16_value(e[9]) * inverse));
        }
    }
    for (int32_t g = threadIdx.x; quantized && g < groups; g += blockDim.x) {
        __half2 *out = (__half2 *)(tile + (int64_t)g * 4 * block_bytes + 2048);
        out[row % 64] = __halves2half2(to_half(bf16_value(scales[g]) * inverse),
                                       to_half(bf16_value(biases[g]) * inverse));
    }
}

cudaError_t launch_repack(const packed_matrix *to, int32_t first_matrix, int32_t first_row,
                          int32_t row_stride, const raw_matrices *from, cudaStream_t stream)
{
    dim3 grid((unsigned)from->rows, (unsigned)from->n);
    repack_kernel<<<grid, 128, 0, stream>>>(*from, *to, first_matrix, first_row, row_stride);
    return cudaGetLastError();
}

static __global__ void dequantize_kernel(raw_matrices from, int32_t bits, float *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)from.n * from.rows * from.cols) return;
    const unsigned char *codes = (const unsigned char *)from.codes;
    if (!from.scales) {
        out[i] = bf16_value(((const uint16_t *)from.codes)[i]);
        return;
    }
    int32_t q = bits == 8 ? codes[i] : codes[i / 2] >> 4 * (i % 2) & 15;
    out[i] = fmaf(bf16_value(from.scales[i / 64]), (float)q, bf16_value(from.biases[i / 64]));
}

cudaError_t launch_dequantize(const raw_matrices *from, int32_t bits, float *out,
                              cudaStream_t stream)
{
    int64_t n = (int64_t)from->n * from->rows * from->cols;
    dequantize_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(*from, bits, out);
    return cudaGetLastError();
}
