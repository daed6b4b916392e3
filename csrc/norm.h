// Sums over a row, and the RMSNorm of one, for every kernel that norms.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

// The sum over a row of term(elements), elementwise: sixteen running sums, element i into sum i % 16, then folded in the
// fixed order of sum().
template <class T, class Term>
MOTET_INLINE float sum_row(const T* x, int64_t num_cols, const Term& term) {
    f32x16 sums = {};
    int64_t i = 0;
    for (; i + kLanes <= num_cols; i += kLanes) sums = sums + term(load(x + i));
    if (i < num_cols) {  // the term of a lane that is not there need not be 0
        float lanes[kLanes];
        store(lanes, term(load_first(x + i, num_cols - i)));
        sums = sums + load_first(lanes, num_cols - i);
    }
    return sum(sums);
}

template <class T>
MOTET_INLINE float inverse_rms(const T* x, int64_t num_cols, float eps) {
    const float squares = sum_row(x, num_cols, [](const f32x16& v) { return v * v; });
    return 1.0f / __builtin_sqrtf(squares / float(num_cols) + eps);
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
