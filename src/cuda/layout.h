/* How 4-bit matrices lie in device memory: repacked once at upload, in the order in which tensor
 * cores want the operand A in registers (mma and wgmma, fp16) and which dot products of bytes read
 * just as well. Prefill and decode use the same copy.
 *
 * W[rows][cols], rows filled up with zeros to a multiple of 64, cols a multiple of 64. A *strip* is
 * 16 rows. A *block* is a strip by one quantisation group of 64 columns: W4_BLOCK_BYTES in one
 * piece,
 *   [32 lanes][4 words] u32   codes, lane-major: what lane l of a warp holds in one 16-byte load
 *   [16 rows] u32             bf16 scale in the low half, bf16 bias in the high half
 * and the blocks of a strip follow each other along the columns: block (strip, group) is number
 * strip * (cols / 64) + group. So a warp streams a strip, four neighbouring strips make the 64 rows
 * of a wgmma, and any range of groups is contiguous within its strip.
 *
 * Lane l has rows r = l / 4 and r + 8 of the strip, and of word j the columns of k-step j (16
 * columns each), c = 16 j + 2 (l % 4): nibbles, from the lowest,
 *   0: (r, c)  1: (r + 8, c)  2: (r, c + 8)  3: (r + 8, c + 8)
 *   4: (r, c + 1)  5: (r + 8, c + 1)  6: (r, c + 9)  7: (r + 8, c + 9)
 * Masking a word with 0x000f000f, 0x00f000f0, and the same 8 bits further up gives the four
 * registers of A; masking with 0x0f0f0f0f gives four codes of row r for a byte dot product with
 * the inputs c, c + 8, c + 1, c + 9, and 4 bits further up those of row r + 8.
 *
 * Matrices that share their input are stored as one, rows below each other:
 *   GDN        qkv | z | a | b
 *   attention  q and gate per head | k | v
 *   experts    gate and up, interleaved: each strip has rows 8i ... 8i + 7 of gate, then the same
 *              of up, so that a lane has both factors of a SwiGLU
 * The experts of a layer follow each other, each a whole number of strips; the shared expert is a
 * matrix of its own, laid out alike.
 *
 * 8-bit matrices (routers) and the embedding stay in the checkpoint's row-major layout. */
#ifndef CALLA_CUDA_LAYOUT_H
#define CALLA_CUDA_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum {
    W4_STRIP_ROWS = 16,
    W4_GROUP = 64,        /* columns of a block: a quantisation group */
    W4_CODE_BYTES = 512,  /* of a block: 32 lanes of 16 bytes */
    W4_BLOCK_BYTES = 576, /* and 16 pairs of scale and bias */
    W4_ROW_MULTIPLE = 64, /* rows are filled up to it */
};

/* A matrix in that layout. */
typedef struct w4_matrix {
    const unsigned char *blocks; /* device memory, 64-byte aligned */
    int32_t rows;                /* without the filling */
    int32_t cols;
} w4_matrix;

static inline int32_t w4_strips(int64_t rows)
{
    return (int32_t)((rows + W4_ROW_MULTIPLE - 1) / W4_ROW_MULTIPLE *
                     (W4_ROW_MULTIPLE / W4_STRIP_ROWS));
}
static inline size_t w4_bytes(int64_t rows, int32_t cols)
{
    return (size_t)w4_strips(rows) * (size_t)(cols / W4_GROUP) * W4_BLOCK_BYTES;
}

#endif
