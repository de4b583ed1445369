/* Rows of the embedding, for a step and for a chunk. */
#include "cuda/common.cuh"

/* ---- embedding ---- */

/* One row of the embedding, exactly scale * code + bias. Moves hidden * 0.5625 bytes. */
__device__ static void embed_row(const unsigned char *codes, const uint32_t *pairs, int token,
                                 int hidden, float *x)
{
    codes += (size_t)token * (hidden / 2);
    pairs += (size_t)token * (hidden / QUANT_COLUMNS);
    for (int i = threadIdx.x; i < hidden / 2; i += blockDim.x) {
        const uint32_t pair = pairs[i / (QUANT_COLUMNS / 2)];
        const float scale = bf16_low(pair), bias = bf16_high(pair);
        float2 v;
        v.x = scale * (float)(codes[i] & 15) + bias;
        v.y = scale * (float)(codes[i] >> 4) + bias;
        ((float2 *)x)[i] = v;
    }
}

__global__ void __launch_bounds__(256) embed_step_kernel(embed_args a)
{
    const int row = blockIdx.x;
    const step_row &in = a.input->rows[row];
    const int token = in.token >= 0 ? in.token : a.sampled[in.slot];
    if (threadIdx.x == 0) {
        a.bad_layer[row] = INT32_MAX;
        a.output[row].bad_logit = INT32_MAX;
        a.output[row].token = token;
    }
    embed_row(a.codes, a.pairs, token, a.hidden, a.x + (size_t)row * a.hidden);
}

extern "C" cudaError_t launch_embed_step(const embed_args *a, cudaStream_t stream)
{
    return launch(embed_step_kernel, dim3((unsigned)a->n), 256, 0, stream, false, *a);
}

__global__ void __launch_bounds__(256)
    embed_rows_kernel(const unsigned char *codes, const uint32_t *pairs, const int32_t *tokens,
                      int hidden, float *x)
{
    embed_row(codes, pairs, tokens[blockIdx.x], hidden, x + (size_t)blockIdx.x * hidden);
}

extern "C" cudaError_t launch_embed_rows(const unsigned char *codes, const uint32_t *pairs,
                                         const int32_t *tokens, int32_t n, int32_t hidden, float *x,
                                         cudaStream_t stream)
{
    return launch(embed_rows_kernel, dim3((unsigned)n), 256, 0, stream, false, codes, pairs, tokens,
                  (int)hidden, x);
}
