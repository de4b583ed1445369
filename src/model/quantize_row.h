/* The arithmetic of MLX's affine quantization (MODEL.md 2.2). */
#ifndef CALLA_MODEL_QUANTIZE_ROW_H
#define CALLA_MODEL_QUANTIZE_ROW_H

#include <stdbool.h>
#include <stdint.h>

/* Quantizes one row w [cols] bf16 of any alignment, cols a multiple of 64, bits 4 or 8, to codes
 * [cols * bits / 8] (element c at bit bits * c, lowest first), scales and biases [cols / 64] bf16.
 * Every operation is in f32 in the order of MLX's Metal kernel; scale and bias are rounded to bf16
 * only after the codes were taken from them. False, with outputs unspecified, if the row holds an
 * infinity or NaN or its range overflows bf16. */
bool quantize_row(const void *w, int64_t cols, int bits, unsigned char *codes, uint16_t *scales,
                  uint16_t *biases);

#endif
