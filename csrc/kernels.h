// The kernels that every instruction set provides: what a kernel source defines and module.cpp binds.
//
// Buffers are dense and row-major; the caller keeps them alive. A row's result depends on nothing but that row:
// not on the number of rows, the number of threads, or the instruction set.
#pragma once

#include <cstdint>

namespace motet {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };

struct RmsNormArgs {
    void* out;            // [num_rows, num_cols] of dtype; may be x
    const void* x;        // [num_rows, num_cols] of dtype
    const float* weight;  // [num_cols]
    int64_t num_rows;
    int64_t num_cols;
    float eps;
    DType dtype;
    int num_threads;
};

struct AddRmsNormArgs {
    RmsNormArgs norm;      // norm.x is added to the residual; norm.out receives the normed sum
    const void* residual;  // [num_rows, num_cols] of dtype
    void* sum;             // [num_rows, num_cols] of dtype: round(x + residual); may be residual, not norm.out
};

#define MOTET_DECLARE_KERNELS(isa)              \
    namespace isa {                             \
    void rms_norm(const RmsNormArgs&);          \
    void add_rms_norm(const AddRmsNormArgs&);   \
    }

MOTET_DECLARE_KERNELS(generic)
MOTET_DECLARE_KERNELS(avx2)
MOTET_DECLARE_KERNELS(avx512)

#undef MOTET_DECLARE_KERNELS

}  // namespace motet
