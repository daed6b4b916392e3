// From the fused QKV projection to heads: norm (optional), rotary embedding (optional), one pass per token. Defined by
// motet/ops/reference/rope.py. A head is widened to float once, normed, rounded (as the definition does), rotated, and
// rounded again; each token by itself, so its bits depend on nothing else.
#include "kernels.h"
#include "norm.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 4096;  // of a member of the team

// Rotates the pairs (i, i + half) of one head in place.
template <class T>
void rotate(T* head, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const f32x16 a = load(head + i), b = load(head + half + i), c = load(cos + i), s = load(sin + i);
        store(head + i, a * c + b * s * -1.0f);
        store(head + half + i, b * c + a * s);
    }
    if (i < half) {
        const int64_t rest = half - i;
        const f32x16 a = load_first(head + i, rest), b = load_first(head + half + i, rest);
        const f32x16 c = load_first(cos + i, rest), s = load_first(sin + i, rest);
        store_first(head + i, a * c + b * s * -1.0f, rest);
        store_first(head + half + i, b * c + a * s, rest);
    }
}

// All heads of one part (q, k or v) of one token.
template <class T>
void heads(T* out, const T* x, int64_t num_heads, int64_t position, const QkvHeadsArgs& a, const float* weight,
           int64_t norm_size, bool rotates) {
    const int64_t count = num_heads * a.head_size;
    if (weight) {
        for (int64_t i = 0; i < count; i += norm_size) norm_row(out + i, x + i, weight, norm_size, a.eps);
    } else {
        std::memcpy(out, x, size_t(count) * sizeof(T));
    }
    if (!rotates || !a.cos) return;
    const float* cos = a.cos + position * a.half;
    const float* sin = a.sin + position * a.half;
    for (int64_t head = 0; head < num_heads; ++head) rotate(out + head * a.head_size, cos, sin, a.half);
}

template <class T>
void qkv_heads_as(const QkvHeadsArgs& a, const Team& team) {
    const int64_t q_size = a.num_heads * a.head_size, kv_size = a.num_kv_heads * a.head_size;
    const int64_t width = q_size + 2 * kv_size;
    const Range tokens = team.share(a.num_tokens, kMinElements / width);
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        const T* x = static_cast<const T*>(a.qkv) + t * width;
        const int64_t position = a.positions[t];
        heads(static_cast<T*>(a.q) + t * q_size, x, a.num_heads, position, a, a.q_norm, a.q_norm_size, true);
        heads(static_cast<T*>(a.k) + t * kv_size, x + q_size, a.num_kv_heads, position, a, a.k_norm, a.k_norm_size, true);
        heads(static_cast<T*>(a.v) + t * kv_size, x + q_size + kv_size, a.num_kv_heads, position, a, nullptr, 0, false);
    }
}

}  // namespace

void qkv_heads(const QkvHeadsArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return qkv_heads_as<float>(a, team);
        case DType::bf16: return qkv_heads_as<bf16>(a, team);
        case DType::f16: return qkv_heads_as<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
