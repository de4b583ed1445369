/* Which instructions this processor has and the operating system lets programs use. */
#ifndef CALLA_BASE_CPU_FEATURES_H
#define CALLA_BASE_CPU_FEATURES_H

#include <stdint.h>

enum {
    CPU_AVX2 = 1 << 0,
    CPU_FMA = 1 << 1,
    CPU_F16C = 1 << 2,
    CPU_AVX512F = 1 << 3,
    CPU_AVX512BW = 1 << 4,
    CPU_AVX512DQ = 1 << 5,
    CPU_AVX512VL = 1 << 6,
    CPU_AVX512VNNI = 1 << 7,
    CPU_AVX512BF16 = 1 << 8,
    CPU_AVX512VBMI = 1 << 9,
    CPU_AMX_TILE = 1 << 10, /* the three AMX bits only where the kernel granted the tile state */
    CPU_AMX_BF16 = 1 << 11,
    CPU_AMX_INT8 = 1 << 12,
    CPU_DOTPROD = 1 << 13, /* beyond NEON, which every 64-bit Arm processor has */
    CPU_I8MM = 1 << 14,
    CPU_ARM_BF16 = 1 << 15,
    N_CPU_FEATURES = 16,

    /* What the kernels of an ISA need, all of it. */
    CPU_ISA_AVX2 = CPU_AVX2 | CPU_FMA | CPU_F16C,
    CPU_ISA_AVX512 =
        CPU_ISA_AVX2 | CPU_AVX512F | CPU_AVX512BW | CPU_AVX512DQ | CPU_AVX512VL | CPU_AVX512VNNI,
    CPU_ISA_AMX = CPU_ISA_AVX512 | CPU_AVX512BF16 | CPU_AVX512VBMI | CPU_AMX_TILE | CPU_AMX_BF16,
    CPU_ISA_DOTPROD = CPU_DOTPROD,
    CPU_ISA_I8MM = CPU_ISA_DOTPROD | CPU_I8MM,
    CPU_ISA_ARM_BF16 = CPU_ISA_I8MM | CPU_ARM_BF16,
};

/* The set of the bits above. On Linux AMX needs a permission of the process, which this asks for:
 * call it before threads that use tiles are started. */
uint32_t cpu_features(void);

/* "avx2", "amx-tile" ... of bit number 0 <= i < N_CPU_FEATURES; static storage. */
const char *cpu_feature_name(int i);

#endif
