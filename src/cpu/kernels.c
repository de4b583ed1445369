#include "cpu/kernels.h"

#include <string.h>

static const char *const names[] = {"auto", "f32", "c", "c-bf16", NULL};

const char *const *cpu_isa_names(void)
{
    return names;
}

static void use_c(cpu_kernels *k)
{
    *k = (cpu_kernels){
        .pack_tile = 8,
        .pack_element_bytes = 4,
        .dequantize = dequantize_c,
        .gemv_f32 = gemv_f32_c,
        .quantize_input = quantize_input_c,
        .gemv_q4 = gemv_q4_c,
        .pack_input = pack_input_c,
        .gemm = gemm_c,
        .rmsnorm = rmsnorm_c,
        .l2norm = l2norm_c,
        .gated_norm = gated_norm_c,
        .conv_silu = conv_silu_c,
        .gdn_gates = gdn_gates_c,
        .rope = rope_c,
        .swiglu = swiglu_c,
        .sigmoid_gate = sigmoid_gate_c,
        .add_scaled = add_scaled_c,
        .router_top_k = router_top_k_c,
        .f32_to_f16 = f32_to_f16_c,
        .gdn_scan = gdn_scan_c,
        .attention_block_f32 = attention_block_f32_c,
        .attention_block_f16 = attention_block_f16_c,
        .attention_merge = attention_merge_c,
    };
}

static calla_status unknown_isa(const char *isa, calla_error *err)
{
    char list[256] = "";
    for (int i = 0; names[i]; i++) {
        if (i > 0) strcat(list, ", ");
        strcat(list, names[i]);
    }
    return error_set(err, CALLA_ERR_INPUT, "isa \"%s\" is not one of %s", isa, list);
}

calla_status cpu_kernels_select(const char *isa, calla_layout layout, cpu_kernels *k,
                                calla_error *err)
{
    if (!isa || strcmp(isa, "auto") == 0) isa = layout == CALLA_LAYOUT_BF16 ? "f32" : "c";
    const char *name = NULL; /* static storage, unlike isa */
    for (int i = 1; names[i]; i++)
        if (strcmp(isa, names[i]) == 0) name = names[i];
    if (!name) return unknown_isa(isa, err);
    bool fast = strcmp(name, "f32") != 0;
    if (fast && layout == CALLA_LAYOUT_BF16)
        return error_set(
            err, CALLA_ERR_UNSUPPORTED,
            "isa \"%s\" needs a 4-bit checkpoint; this one is bf16: use isa \"f32\" or "
            "quantize it first",
            name);
    use_c(k);
    k->isa = name;
    k->fast = fast;
    if (strcmp(name, "c-bf16") == 0) {
        k->pack_input = pack_input_bf16_c;
        k->gemm = gemm_bf16_c;
    }
    return CALLA_OK;
}
