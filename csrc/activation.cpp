// Activations of feed-forward blocks, elementwise and so exact by themselves; their own exponential (not libm's or
// torch's, whose vector and scalar versions differ) keeps a value's bits independent of its place in the tensor.
// Defined by motet/ops/reference/activation.py.
#include "kernels.h"
#include "vec_math.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 4096;  // of a member of the team

// The bound keeps the exponential finite, and a NaN is kept.
MOTET_INLINE f32x16 sigmoid(const f32x16& x) {
    return broadcast(1.0f) / (broadcast(1.0f) + exp(max(broadcast(-88.0f), x) * -1.0f));
}

template <Activation kind>
MOTET_INLINE f32x16 activate(const f32x16& x, float cap) {
    if constexpr (kind == Activation::silu) {
        return x * sigmoid(x);
    } else if constexpr (kind == Activation::soft_cap) {
        return tanh(x / broadcast(cap)) * cap;
    } else if constexpr (kind == Activation::relu) {
        return max(broadcast(0.0f), x);  // a NaN is kept
    } else if constexpr (kind == Activation::gelu) {  // x (1 + erf(x / sqrt(2))) / 2, by the tail on x's side
        const f32x16 magnitude = max(x * -1.0f, x);
        const f32x16 half_tail = erfc(magnitude * 0.7071067811865476f) * 0.5f;
        f32x16 share;
        for (int64_t i = 0; i < kParts; ++i) {
            share.part[i] = x.part[i] < 0.0f ? half_tail.part[i] : 1.0f - half_tail.part[i];
        }
        return x * share;
    } else {  // gelu with tanh: 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
        return x * sigmoid((x + x * x * x * 0.044715f) * 1.5957691216057308f);
    }
}

template <class T, Activation kind>
void row(T* out, const T* gate, const T* up, int64_t count, float cap) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        const f32x16 value = activate<kind>(load(gate + i), cap);
        store(out + i, up ? value * load(up + i) : value);
    }
    if (i < count) {
        const int64_t rest = count - i;
        const f32x16 value = activate<kind>(load_first(gate + i, rest), cap);
        store_first(out + i, up ? value * load_first(up + i, rest) : value, rest);
    }
}

template <class T, Activation kind>
void activation_as(const ActivationArgs& a, const Team& team) {
    T* out = static_cast<T*>(a.out);
    const T* x = static_cast<const T*>(a.x);
    const int64_t stride = a.is_gated ? 2 * a.num_cols : a.num_cols;
    const Range rows = team.share(a.num_rows, kMinElements / (a.num_cols + 1));
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const T* gate = x + r * stride;
        row<T, kind>(out + r * a.num_cols, gate, a.is_gated ? gate + a.num_cols : nullptr, a.num_cols, a.cap);
    }
}

template <class T>
void activation_of(const ActivationArgs& a, const Team& team) {
    switch (a.kind) {
        case Activation::silu: return activation_as<T, Activation::silu>(a, team);
        case Activation::gelu_tanh: return activation_as<T, Activation::gelu_tanh>(a, team);
        case Activation::soft_cap: return activation_as<T, Activation::soft_cap>(a, team);
        case Activation::gelu: return activation_as<T, Activation::gelu>(a, team);
        case Activation::relu: return activation_as<T, Activation::relu>(a, team);
    }
}

}  // namespace

void activation(const ActivationArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return activation_of<float>(a, team);
        case DType::bf16: return activation_of<bf16>(a, team);
        case DType::f16: return activation_of<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
