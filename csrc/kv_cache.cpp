// Stores K and V in the paged cache, rounded to its type. Defined by motet/ops/reference/attention.py.
//
// Exact: what is stored of a token and head, its scales too, comes from that vector alone.
#include "byte_floats.h"
#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 8192;  // of a member of the team

template <class Cache, class T>
void write_kv_as(const WriteKvArgs& a, const Team& team) {
    const T* k = static_cast<const T*>(a.k);
    const T* v = static_cast<const T*>(a.v);
    Cache* k_cache = static_cast<Cache*>(a.k_cache);
    Cache* v_cache = static_cast<Cache*>(a.v_cache);
    const int64_t num_copies = a.num_tokens * a.num_kv_heads;
    const Range copies = team.share(num_copies, kMinElements / a.head_size);
    for (int64_t i = copies.begin; i < copies.end; ++i) {
        const int64_t token = i / a.num_kv_heads, head = i % a.num_kv_heads;
        const int64_t vector = a.slots[token] * a.num_kv_heads + head, index = vector * a.head_size;
        const T* key = k + token * a.k_strides.token + head * a.k_strides.head;
        const T* value = v + token * a.v_strides.token + head * a.v_strides.head;
        if constexpr (kIsScaled<Cache>) {
            a.k_scale[vector] = store_scaled(k_cache + index, key, a.head_size);
            a.v_scale[vector] = store_scaled(v_cache + index, value, a.head_size);
        } else {
            convert(k_cache + index, key, a.head_size);
            convert(v_cache + index, value, a.head_size);
        }
    }
}

template <class Cache>
void write_kv_to(const WriteKvArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return write_kv_as<Cache, float>(a, team);
        case DType::bf16: return write_kv_as<Cache, bf16>(a, team);
        case DType::f16: return write_kv_as<Cache, f16>(a, team);
    }
}

}  // namespace

void write_kv(const WriteKvArgs& args, const Team& team) {
    switch (args.cache_dtype) {
        case CacheDType::f32: return write_kv_to<float>(args, team);
        case CacheDType::bf16: return write_kv_to<bf16>(args, team);
        case CacheDType::f16: return write_kv_to<f16>(args, team);
        case CacheDType::int8: return write_kv_to<i8>(args, team);
        case CacheDType::f8: return write_kv_to<f8>(args, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
