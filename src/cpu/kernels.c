#include "cpu/kernels.h"
#include "base/cpu_features.h"

#include <pthread.h>
#include <string.h>

static void use_c(cpu_kernels *k)
{
    *k = (cpu_kernels){
        .pack_tile = 8,
        .gemm_inputs = GEMM_F32,
        .pack_group_bytes = QUANT_GROUP * 4,
        .dequantize = dequantize_c,
        .gemv_f32 = gemv_f32_c,
        .quantize_input = quantize_input_c,
        .gemv_q4 = gemv_q4_c,
        .pack_input = pack_input_c,
        .gemm = gemm_c,
        .pack_tile_f32 = 8,
        .pack_group_bytes_f32 = QUANT_GROUP * 4,
        .pack_input_f32 = pack_input_c,
        .gemm_f32 = gemm_c,
        .rmsnorm = rmsnorm_c,
        .l2norm = l2norm_c,
        .gated_norm = gated_norm_c,
        .conv_silu = conv_silu_c,
        .gdn_gates = gdn_gates_c,
        .rope = rope_c,
        .swiglu = swiglu_c,
        .sigmoid_gate = sigmoid_gate_c,
        .add_scaled = add_scaled_c,
        .add_rows = add_rows_c,
        .router_top_k = router_top_k_c,
        .f32_to_f16 = f32_to_f16_c,
        .gdn_products = gdn_products_c,
        .gdn_scan = gdn_scan_c,
        .gdn_scan_tile = gdn_scan_c,
        .attention_block_f32 = attention_block_f32_c,
        .attention_block_f16 = attention_block_f16_c,
        .attention_merge = attention_merge_c,
        .measure_read = measure_read_c,
        .measure_multiply = measure_multiply_c,
    };
}

/* Everything compiled from src/cpu/simd for one instruction set. */
#define USE_SIMD(k, isa_name, lanes)                                                               \
    do {                                                                                           \
        (k)->pack_tile = lanes;                                                                    \
        (k)->dequantize = dequantize_##isa_name;                                                   \
        (k)->gemv_f32 = gemv_f32_##isa_name;                                                       \
        (k)->quantize_input = quantize_input_##isa_name;                                           \
        (k)->gemv_q4 = gemv_q4_##isa_name;                                                         \
        (k)->pack_input = pack_input_##isa_name;                                                   \
        (k)->gemm = gemm_##isa_name;                                                               \
        (k)->pack_tile_f32 = lanes;                                                                \
        (k)->pack_input_f32 = pack_input_##isa_name;                                               \
        (k)->gemm_f32 = gemm_##isa_name;                                                           \
        (k)->rmsnorm = rmsnorm_##isa_name;                                                         \
        (k)->l2norm = l2norm_##isa_name;                                                           \
        (k)->gated_norm = gated_norm_##isa_name;                                                   \
        (k)->conv_silu = conv_silu_##isa_name;                                                     \
        (k)->rope = rope_##isa_name;                                                               \
        (k)->swiglu = swiglu_##isa_name;                                                           \
        (k)->sigmoid_gate = sigmoid_gate_##isa_name;                                               \
        (k)->add_scaled = add_scaled_##isa_name;                                                   \
        (k)->add_rows = add_rows_##isa_name;                                                       \
        (k)->f32_to_f16 = f32_to_f16_##isa_name;                                                   \
        (k)->gdn_products = gdn_products_##isa_name;                                               \
        (k)->gdn_scan = gdn_scan_##isa_name;                                                       \
        (k)->gdn_scan_tile = gdn_scan_##isa_name;                                                  \
        (k)->attention_block_f32 = attention_block_f32_##isa_name;                                 \
        (k)->attention_block_f16 = attention_block_f16_##isa_name;                                 \
        (k)->attention_merge = attention_merge_##isa_name;                                         \
        (k)->measure_read = measure_read_##isa_name;                                               \
        (k)->measure_multiply = measure_multiply_##isa_name;                                       \
    } while (0)

/* Prefill's products of 4-bit matrices in integers. */
#define USE_INTEGERS(k, isa_name)                                                                  \
    do {                                                                                           \
        (k)->gemm_inputs = GEMM_INT16;                                                             \
        (k)->pack_tile = 1;                                                                        \
        (k)->pack_group_bytes = QUANT_GROUP * 2;                                                   \
        (k)->pack_input = pack_input_q4_##isa_name;                                                \
        (k)->pack_columns = pack_columns_q4_##isa_name;                                            \
        (k)->pack_rows = pack_input_q4_##isa_name;                                                 \
        (k)->gather_rows = gather_rows_q4_c;                                                       \
        (k)->gemm = gemm_q4_##isa_name;                                                            \
        (k)->measure_multiply = measure_multiply_q4_##isa_name;                                    \
    } while (0)

/* The instruction sets of this architecture, weakest first: what each needs, how it fills a table.
 */
#if defined(__x86_64__)
static void use_avx2(cpu_kernels *k)
{
    USE_SIMD(k, avx2, 8);
    USE_INTEGERS(k, avx2);
}
static void use_avx512(cpu_kernels *k)
{
    USE_SIMD(k, avx512, 16);
    USE_INTEGERS(k, avx512);
}
/* Over AVX-512: prefill's products alone. */
static void use_amx(cpu_kernels *k)
{
    k->pack_tile = 16;
    k->pack_group_bytes = QUANT_GROUP * 2;
    k->gemm_inputs = GEMM_BF16;
    k->pack_input = pack_input_bf16_amx;
    k->pack_columns = NULL;
    k->pack_rows = pack_rows_bf16_amx;
    k->gather_rows = gather_rows_bf16_amx;
    k->gemm = gemm_bf16_amx;
    k->gemm_gated = gemm_gated_bf16_amx;
    k->gemm_many = gemm_many_bf16_amx;
    k->gemm_pieces = gemm_pieces_bf16_amx;
    k->pack_tile_f32 = 16;
    k->pack_group_bytes_f32 = AMX_F32_GROUP_BYTES;
    k->pack_input_f32 = pack_input_amx;
    k->gemm_f32 = gemm_amx;
    k->gdn_scan_tile = gdn_scan_tile_amx;
    k->gdn_pack = gdn_pack_amx;
    k->gdn_packed_bytes = AMX_GDN_CELL_BYTES;
    k->attention_tile_f16 = attention_tile_f16_amx;
    k->measure_multiply = measure_multiply_amx;
}
#elif defined(__aarch64__)
static void use_neon(cpu_kernels *k)
{
    USE_SIMD(k, neon, 4);
}
static void use_neon_dotprod(cpu_kernels *k)
{
    k->quantize_input = quantize_input_neon_dotprod;
    k->gemv_q4 = gemv_q4_neon_dotprod;
}
static void use_neon_i8mm(cpu_kernels *k)
{
    k->quantize_input = quantize_input_neon_i8mm;
    k->gemv_q4 = gemv_q4_neon_i8mm;
}
static void use_neon_bf16(cpu_kernels *k)
{
    k->pack_tile = 8;
    k->pack_group_bytes = QUANT_GROUP * 2;
    k->gemm_inputs = GEMM_BF16;
    k->pack_input = pack_input_neon_bf16;
    k->gemm = gemm_neon_bf16;
    k->measure_multiply = measure_multiply_neon_bf16;
}
#endif
static const struct instruction_set {
    const char *name;
    uint32_t features;
    void (*use)(cpu_kernels *k);
} instruction_sets[] = {
#if defined(__x86_64__)
    {"avx2", CPU_ISA_AVX2, use_avx2},
    {"avx512", CPU_ISA_AVX512, use_avx512},
    {"amx", CPU_ISA_AMX, use_amx},
#elif defined(__aarch64__)
    {"neon", 0, use_neon},
    {"neon-dotprod", CPU_ISA_DOTPROD, use_neon_dotprod},
    {"neon-i8mm", CPU_ISA_I8MM, use_neon_i8mm},
    {"neon-bf16", CPU_ISA_ARM_BF16, use_neon_bf16},
#endif
    {NULL, 0, NULL},
};

static bool machine_has(const struct instruction_set *s)
{
    return (cpu_features() & s->features) == s->features;
}

static const char *isa_names[sizeof instruction_sets / sizeof instruction_sets[0] + 4];

static void list_isa_names(void)
{
    int n = 0;
    isa_names[n++] = "auto";
    isa_names[n++] = "f32";
    isa_names[n++] = "c";
    isa_names[n++] = "c-bf16";
    for (const struct instruction_set *s = instruction_sets; s->name; s++)
        if (machine_has(s)) isa_names[n++] = s->name;
}

const char *const *cpu_isa_names(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_isa_names);
    return isa_names;
}

static calla_status unknown_isa(const char *isa, calla_error *err)
{
    char list[256] = "";
    for (const char *const *name = cpu_isa_names(); *name; name++) {
        if (list[0]) strcat(list, ", ");
        strcat(list, *name);
    }
    return error_set(err, CALLA_ERR_INPUT, "isa \"%s\" is not one of %s", isa, list);
}

/* The strongest instruction set of this machine, "c" if there is none. */
static const char *best_isa(void)
{
    const char *best = "c";
    for (const struct instruction_set *s = instruction_sets; s->name; s++)
        if (machine_has(s)) best = s->name;
    return best;
}

static calla_status missing_features(const struct instruction_set *s, calla_error *err)
{
    char list[256] = "";
    for (int i = 0; i < N_CPU_FEATURES; i++) {
        if (!(s->features & ~cpu_features() & (1u << i))) continue;
        if (list[0]) strcat(list, ", ");
        strcat(list, cpu_feature_name(i));
    }
    return error_set(err, CALLA_ERR_UNSUPPORTED, "isa \"%s\": this machine lacks %s", s->name,
                     list);
}

/* The name in static storage, unlike the caller's, and the instruction set if it is one. */
static const char *find_isa(const char *isa, const struct instruction_set **set)
{
    static const char *const plain[] = {"f32", "c", "c-bf16", NULL};
    *set = NULL;
    for (int i = 0; plain[i]; i++)
        if (strcmp(isa, plain[i]) == 0) return plain[i];
    for (const struct instruction_set *s = instruction_sets; s->name; s++) {
        if (strcmp(isa, s->name) != 0) continue;
        *set = s;
        return s->name;
    }
    return NULL;
}

calla_status cpu_kernels_select(const char *isa, calla_layout layout, cpu_kernels *k,
                                calla_error *err)
{
    if (!isa || strcmp(isa, "auto") == 0) isa = layout == CALLA_LAYOUT_BF16 ? "f32" : best_isa();
    const struct instruction_set *set;
    const char *name = find_isa(isa, &set);
    if (!name) return unknown_isa(isa, err);
    bool fast = strcmp(name, "f32") != 0;
    if (fast && layout == CALLA_LAYOUT_BF16)
        return error_set(
            err, CALLA_ERR_UNSUPPORTED,
            "isa \"%s\" needs a 4-bit checkpoint; this one is bf16: use isa \"f32\" or "
            "quantize it first",
            name);
    if (set && !machine_has(set)) return missing_features(set, err);
    use_c(k);
    k->isa = name;
    k->fast = fast;
    if (strcmp(name, "c-bf16") == 0) {
        k->gemm_inputs = GEMM_BF16;
        k->pack_input = pack_input_bf16_c;
        k->gemm = gemm_bf16_c;
    }
    if (set)
        for (const struct instruction_set *s = instruction_sets; s <= set; s++) s->use(k);
    return CALLA_OK;
}
