// Activations to int8, for the matrix kernels of csrc/quant_linear.cpp. Defined by motet/ops/reference/quantized.py.
//
// Each group of each row is quantised by itself: scale = max|x| / 127, q = x * (127 / max|x|) rounded to nearest even.
// The maximum and the sums of integers are the same in any order, so a group's bits depend on its own inputs alone.
#include "int_vec.h"
#include "kernels.h"
#include "team.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kLeastInputs = 4096;  // that are worth a thread

// `count` inputs, and zeros up to `num_bytes`. A group with a NaN or an infinity gets the scale NaN.
template <class T>
void quantize_group(uint8_t* out, const T* x, int64_t count, int64_t num_bytes) {
    const int32_t bits = greatest_magnitude(x, count);
    const bool is_finite = bits < 0x7f800000;
    const float greatest = bit_cast<float>(bits), scale = is_finite ? greatest / 127.0f : __builtin_nanf("");
    const bool is_zero = greatest < 0x1p-100f;
    const float factor = is_zero || !is_finite ? 0.0f : 127.0f / greatest;
    i32x16 sums = {};
    GroupMeta meta = {is_zero ? 0.0f : scale, 0.0f, 0, {0, 0}};
    for (int64_t i = 0; i < num_bytes; i += kLanes) {
        const i32x16 q = nearest(load_up_to(x + i, count - i) * factor);
        store_bytes(out + i, q);
        for (int64_t p = 0; p < kParts; ++p) sums.part[p] += q.part[p];
        if (i == 0) meta.negative_halves[0] = -sum(sums);
    }
    meta.negative_sum = -sum(sums);
    meta.negative_halves[1] = meta.negative_sum - meta.negative_halves[0];
    meta.scaled_sum = meta.scale * float(-meta.negative_sum);
    std::memcpy(out + num_bytes, &meta, sizeof(meta));
}

template <class T>
void quantize_rows_as(const QuantizeRowsArgs& a, const Team& team) {
    const int64_t num_groups = (a.num_cols + a.group - 1) / a.group;
    const int64_t num_bytes = (a.group + 31) / 32 * 32, record = num_bytes + int64_t(sizeof(GroupMeta));
    const Range range = team.share(a.num_rows * num_groups, kLeastInputs / a.group + 1);
    for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t row = i / num_groups, first = i % num_groups * a.group;
        const int64_t rest = a.num_cols - first, count = rest < a.group ? rest : a.group;
        quantize_group(static_cast<uint8_t*>(a.out) + i * record, static_cast<const T*>(a.x) + row * a.num_cols + first,
                       count, num_bytes);
    }
}

}  // namespace

void quantize_rows(const QuantizeRowsArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return quantize_rows_as<float>(a, team);
        case DType::bf16: return quantize_rows_as<bf16>(a, team);
        case DType::f16: return quantize_rows_as<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
