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

template <class T>
MOTET_INLINE f32x16 load_up_to(const T* p, int64_t count) {
    if (count >= kLanes) return load(p);
    return count > 0 ? load_first(p, count) : f32x16{};
}

// Rounds sixteen products to bytes, and adds the integers to `sums`.
MOTET_INLINE void put_bytes(int8_t* out, const f32x16& x, float factor, i32x16& sums) {
    const f32x16 rounder = broadcast(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
    const f32x16 shifted = x * factor + rounder;
    for (int64_t i = 0; i < kParts; ++i) {
        const i32_part q = (bit_cast<i32_part>(shifted.part[i]) << 24) >> 24;
        sums.part[i] += q;
#if defined(__AVX512F__)
        _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8((__m512i)q));
#else
        const i8_part bytes = __builtin_convertvector(q, i8_part);
        std::memcpy(out + i * kWidth, &bytes, sizeof(bytes));
#endif
    }
}

// `count` inputs, and zeros up to `num_bytes`. A group with a NaN or an infinity gets the scale NaN.
template <class T>
void quantize_group(int8_t* out, const T* x, int64_t count, int64_t num_bytes) {
    // Without their signs, floats are in the order of their bits, infinity and NaN above all others.
    i32x16 most = {};
    for (int64_t i = 0; i < count; i += kLanes) most = max(most, magnitude_bits(load_up_to(x + i, count - i)));
    const int32_t bits = largest(most);
    const bool is_finite = bits < 0x7f800000;
    const float greatest = bit_cast<float>(bits), scale = is_finite ? greatest / 127.0f : __builtin_nanf("");
    const bool is_zero = greatest < 0x1p-100f;
    const float factor = is_zero || !is_finite ? 0.0f : 127.0f / greatest;
    i32x16 sums = {};
    GroupMeta meta = {is_zero ? 0.0f : scale, 0.0f, 0, {0, 0}};
    for (int64_t i = 0; i < num_bytes; i += kLanes) {
        put_bytes(out + i, load_up_to(x + i, count - i), factor, sums);
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
        quantize_group(static_cast<int8_t*>(a.out) + i * record, static_cast<const T*>(a.x) + row * a.num_cols + first,
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
