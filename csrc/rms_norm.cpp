// RMSNorm (Zhang and Sennrich, 2019), alone or after a residual add. Defined by motet/ops/reference/norm.py.
#include "kernels.h"
#include "norm.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

// Under this much work a team of threads costs more than it saves.
constexpr int64_t kMinElementsPerTeam = 32768;

template <class RowKernel>
void for_each_row(int64_t num_rows, int64_t num_cols, int num_threads, const RowKernel& kernel) {
    if (num_rows * num_cols < kMinElementsPerTeam) num_threads = 1;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int64_t row = 0; row < num_rows; ++row) kernel(row * num_cols);
}

template <class T>
void add_row(T* sum, const T* x, const T* residual, int64_t num_cols) {
    int64_t i = 0;
    for (; i + kLanes <= num_cols; i += kLanes) store(sum + i, load(x + i) + load(residual + i));
    if (i < num_cols) {
        const int64_t rest = num_cols - i;
        store_first(sum + i, load_first(x + i, rest) + load_first(residual + i, rest), rest);
    }
}

template <class T>
void rms_norm_as(const RmsNormArgs& a) {
    T* out = static_cast<T*>(a.out);
    const T* x = static_cast<const T*>(a.x);
    for_each_row(a.num_rows, a.num_cols, a.num_threads, [&](int64_t start) {
        norm_row(out + start, x + start, a.weight, a.num_cols, a.eps);
    });
}

// The sum goes through memory (a row fits in L1), so that the norm reads what was rounded.
template <class T>
void add_rms_norm_as(const AddRmsNormArgs& a) {
    const RmsNormArgs& n = a.norm;
    T* out = static_cast<T*>(n.out);
    T* sum = static_cast<T*>(a.sum);
    const T* x = static_cast<const T*>(n.x);
    const T* residual = static_cast<const T*>(a.residual);
    for_each_row(n.num_rows, n.num_cols, n.num_threads, [&](int64_t start) {
        add_row(sum + start, x + start, residual + start, n.num_cols);
        norm_row(out + start, sum + start, n.weight, n.num_cols, n.eps);
    });
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
    switch (args.dtype) {
        case DType::f32: return rms_norm_as<float>(args);
        case DType::bf16: return rms_norm_as<bf16>(args);
        case DType::f16: return rms_norm_as<f16>(args);
    }
}

void add_rms_norm(const AddRmsNormArgs& args) {
    switch (args.norm.dtype) {
        case DType::f32: return add_rms_norm_as<float>(args);
        case DType::bf16: return add_rms_norm_as<bf16>(args);
        case DType::f16: return add_rms_norm_as<f16>(args);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
