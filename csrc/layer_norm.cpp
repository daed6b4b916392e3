// LayerNorm (Ba et al. 2016). Defined by motet/ops/reference/layer_norm.py. A row's mean, then the mean of the squared
// distances from it, each by sum_row in its fixed order: no row depends on another.
#include "kernels.h"
#include "norm.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 8192;  // of a member of the team

template <class T>
void layer_norm_row(T* out, const T* x, const LayerNormArgs& a) {
    const int64_t n = a.num_cols;
    const float mean = sum_row(x, n, [](const f32x16& v) { return v; }) / float(n);
    const f32x16 means = broadcast(mean);
    const float variance = sum_row(x, n, [&](const f32x16& v) { return (v - means) * (v - means); }) / float(n);
    const float scale = 1.0f / __builtin_sqrtf(variance + a.eps);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const f32x16 value = (load(x + i) - means) * scale * load(a.weight + i);
        store(out + i, a.bias ? value + load(a.bias + i) : value);
    }
    if (i < n) {
        const int64_t rest = n - i;
        const f32x16 value = (load_first(x + i, rest) - means) * scale * load_first(a.weight + i, rest);
        store_first(out + i, a.bias ? value + load_first(a.bias + i, rest) : value, rest);
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
