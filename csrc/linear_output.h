// The end of every matrix kernel: bias and residual are added in float32, and the result is rounded once.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

template <class T>
void finish_as(const LinearOutput& o, f32x16 value, int64_t row, int64_t column, int64_t count) {
    const T* bias = static_cast<const T*>(o.bias);
    const T* residual = static_cast<const T*>(o.residual);
    const int64_t at = row * o.stride + column;
    const bool is_whole = count >= kLanes;
    if (bias) value = value + (is_whole ? load(bias + column) : load_first(bias + column, count));
    if (residual) value = value + (is_whole ? load(residual + at) : load_first(residual + at, count));
    if (o.wants_f32) {
        float* out = static_cast<float*>(o.out) + at;
        is_whole ? store(out, value) : store_first(out, value, count);
    } else {
        T* out = static_cast<T*>(o.out) + at;
        is_whole ? store(out, value) : store_first(out, value, count);
    }
}

// Ends outputs [column, column + 16) of a matrix, or the first `count` of them; count may be negative.
void finish(const LinearOutput& o, f32x16 value, int64_t row, int64_t column, int64_t count) {
    if (count <= 0) return;
    switch (o.dtype) {
        case DType::f32: return finish_as<float>(o, value, row, o.first_column + column, count);
        case DType::bf16: return finish_as<bf16>(o, value, row, o.first_column + column, count);
        case DType::f16: return finish_as<f16>(o, value, row, o.first_column + column, count);
    }
}

}  // namespace
}  // namespace MOTET_ISA
}  // namespace motet
