#include "base/cpu_features.h"

#include <assert.h>

static const char *const names[N_CPU_FEATURES] = {
    "avx2",     "fma",        "f16c",       "avx512f",    "avx512bw", "avx512dq",
    "avx512vl", "avx512vnni", "avx512bf16", "avx512vbmi", "amx-tile", "amx-bf16",
    "amx-int8", "dotprod",    "i8mm",       "bf16",
};

const char *cpu_feature_name(int i)
{
    assert(i >= 0 && i < N_CPU_FEATURES);
    return names[i];
}

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Intel's manual, volume 1 chapter 13: bits of XCR0, the state the operating system saves. */
enum {
    XCR0_AVX = 0x6,               /* xmm, ymm */
    XCR0_AVX512 = 0xe6,           /* and masks, both parts of zmm */
    XCR0_AMX = 0x60000,           /* tile configuration, tile data */
    XFEATURE_TILE_DATA = 18,      /* the number of that last bit */
    ARCH_REQ_XCOMP_PERM = 0x1023, /* asm/prctl.h since Linux 5.16 */
};

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool request_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

static bool bit(uint32_t word, int i)
{
    return word >> i & 1;
}

uint32_t cpu_features(void)
{
    uint32_t a, b, c, d, b7, c7, d7, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return 0; /* OSXSAVE */
    uint64_t saved = read_xcr0();
    if ((saved & XCR0_AVX) != XCR0_AVX || !bit(c, 28)) return 0;
    if (bit(c, 12)) features |= CPU_FMA;
    if (bit(c, 29)) features |= CPU_F16C;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return features;
    if (bit(b7, 5)) features |= CPU_AVX2;
    if ((saved & XCR0_AVX512) == XCR0_AVX512 && bit(b7, 16)) {
        features |= CPU_AVX512F;
        if (bit(b7, 17)) features |= CPU_AVX512DQ;
        if (bit(b7, 30)) features |= CPU_AVX512BW;
        if (bit(b7, 31)) features |= CPU_AVX512VL;
        if (bit(c7, 1)) features |= CPU_AVX512VBMI;
        if (bit(c7, 11)) features |= CPU_AVX512VNNI;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5)) features |= CPU_AVX512BF16;
    }
    if ((saved & XCR0_AMX) == XCR0_AMX && bit(d7, 24) && request_tiles()) {
        features |= CPU_AMX_TILE;
        if (bit(d7, 22)) features |= CPU_AMX_BF16;
        if (bit(d7, 25)) features |= CPU_AMX_INT8;
    }
    return features;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

uint32_t cpu_features(void)
{
    unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    uint32_t features = 0;
    if (caps & HWCAP_ASIMDDP) features |= CPU_DOTPROD;
    if (caps2 & HWCAP2_I8MM) features |= CPU_I8MM;
    if (caps2 & HWCAP2_BF16) features |= CPU_ARM_BF16;
    return features;
}

#else

uint32_t cpu_features(void)
{
    return 0;
}

#endif
