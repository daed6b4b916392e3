// LayerNorm (Ba et al. 2016). Defined by motet/ops/reference/layer_norm.py. A row's mean, then the mean of the squared
// distances from it, each as sixteen running sums (element i into sum i % 16) folded in the fixed order of sum(): no row
// depends on another.
#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 8192;  // of a member of the team

// The sum over the row of term(elements); elements that are not there are 0.
template <class T, class Term>
MOTET_INLINE float sum_row(const T* x, int64_t num_cols, const Term& term) {
    f32x16 sums = {};
    int64_t i = 0;
    for (; i + kLanes <= num_cols; i += kLanes) sums = sums + term(load(x + i));
    if (i < num_cols) {
        float lanes[kLanes];
        store(lanes, term(load_first(x + i, num_cols - i)));
        sums = sums + load_first(lanes, num_cols - i);
    }
    return sum(sums);
}

template <class T>
void layer_norm_row(T* out, const T* x, const LayerNormArgs& a) {
    const int64_t n = a.num_cols;
    const float mean = sum_row(x, n, [](const f32x16& v) { return v; }) / float(n);
    const f32x16 means = broadcast(mean);
    const float variance = sum_row(x, n, [&](const f32x16& v) { return (v - means) * (v - means); }) / float(n);
    const float scale = 1.0f / __builtin_sqrtf(variance + a.eps);
    for (int64_t i = 0; i < n; i += kLanes) {
        const int64_t count = n - i < kLanes ? n - i : kLanes;
        f32x16 value = (load_first(x + i, count) - means) * scale * load_first(a.weight + i, count);
        if (a.bias) value = value + load_first(a.bias + i, count);
        store_first(out + i, value, count);
    }
}

template <class T>
void layer_norm_as(const LayerNormArgs& a, const Team& team) {
    const Range rows = team.share(a.num_rows, kMinElements / (a.num_cols + 1));
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        layer_norm_row(static_cast<T*>(a.out) + r * a.num_cols, static_cast<const T*>(a.x) + r * a.num_cols, a);
    }
}

}  // namespace

void layer_norm(const LayerNormArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return layer_norm_as<float>(a, team);
        case DType::bf16: return layer_norm_as<bf16>(a, team);
        case DType::f16: return layer_norm_as<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
