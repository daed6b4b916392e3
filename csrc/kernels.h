// The kernels that every instruction set provides: what a kernel source defines and module.cpp binds.
#pragma once

#include "kernel_args.h"
#include "team.h"

namespace motet {

// Name and arguments of every kernel: void name(const Args&, const Team&).
#define MOTET_FOR_EACH_KERNEL(X)          \
    X(rms_norm, RmsNormArgs)              \
    X(layer_norm, LayerNormArgs)          \
    X(linear, LinearArgs)                 \
    X(unpack_rows, UnpackRowsArgs)        \
    X(quantize_rows, QuantizeRowsArgs)    \
    X(quant_linear, QuantLinearArgs)      \
    X(unpack_quantized, UnpackQuantizedArgs) \
    X(route, RouteArgs)                   \
    X(expert_linear, ExpertLinearArgs)    \
    X(quant_expert_linear, QuantExpertLinearArgs) \
    X(combine_experts, CombineExpertsArgs) \
    X(lora_shrink, LoraShrinkArgs)        \
    X(lora_expand, LoraExpandArgs)        \
    X(activation, ActivationArgs)         \
    X(add, AddArgs)                       \
    X(greedy, GreedyArgs)                 \
    X(draw, DrawArgs)                     \
    X(describe, DescribeArgs)             \
    X(select_rows, SelectRowsArgs)        \
    X(qkv_heads, QkvHeadsArgs)            \
    X(write_kv, WriteKvArgs)              \
    X(paged_attention, PagedAttentionArgs)

#define MOTET_DECLARE(name, Args) void name(const Args&, const Team&);
#define MOTET_DECLARE_KERNELS(isa)                                                                      \
    namespace isa {                                                                                     \
    MOTET_FOR_EACH_KERNEL(MOTET_DECLARE)                                                                \
    void pack_linear(void* packed, const void* weight, int64_t num_outputs, int64_t num_inputs, DType); \
    void pack_quantized(const PackQuantizedArgs&);                                                      \
    int64_t packed_bytes(QuantKind, int64_t num_outputs, int64_t num_inputs, int64_t group);            \
    }

MOTET_DECLARE_KERNELS(generic)
MOTET_DECLARE_KERNELS(avx2)
MOTET_DECLARE_KERNELS(avx512)
MOTET_DECLARE_KERNELS(avx512_bf16)

#undef MOTET_DECLARE_KERNELS
#undef MOTET_DECLARE

}  // namespace motet
