// RMSNorm of one row, for every kernel that norms.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

// Sixteen running sums, element i into sum i % 16, then folded in the fixed order of sum().
template <class T>
MOTET_INLINE float inverse_rms(const T* x, int64_t num_cols, float eps) {
    f32x16 squares = {};
    int64_t i = 0;
    for (; i + kLanes <= num_cols; i += kLanes) {
        const f32x16 v = load(x + i);
        squares = squares + v * v;
    }
    if (i < num_cols) {
        const f32x16 v = load_first(x + i, num_cols - i);
        squares = squares + v * v;
    }
    return 1.0f / __builtin_sqrtf(sum(squares) / float(num_cols) + eps);
}

template <class T>
MOTET_INLINE void norm_row(T* out, const T* x, const float* weight, int64_t num_cols, float eps) {
    const float scale = inverse_rms(x, num_cols, eps);
    int64_t i = 0;
    for (; i + kLanes <= num_cols; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
    if (i < num_cols) {
        const int64_t rest = num_cols - i;
        store_first(out + i, load_first(x + i, rest) * scale * load_first(weight + i, rest), rest);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
