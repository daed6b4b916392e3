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

constexpr int64_t kLinearBlock = 64;  // outputs that packed weights keep side by side

struct LinearArgs {
    void* out;             // [num_rows, num_outputs] of dtype, or of float
    const void* x;         // [num_rows, num_inputs] of dtype
    const void* weight;    // packed, of dtype
    const void* bias;      // [num_outputs] of dtype, or null
    const void* residual;  // [num_rows, num_outputs] of dtype, or null
    int64_t num_rows;
    int64_t num_outputs;
    int64_t num_inputs;
    DType dtype;
    bool wants_f32;  // out is float
    int num_threads;
};

struct UnpackRowsArgs {
    void* out;            // [num_rows, num_inputs] of dtype
    const void* weight;   // packed, of dtype
    const int64_t* rows;  // [num_rows], which outputs' weights
    int64_t num_rows;
    int64_t num_inputs;
    DType dtype;
};

enum class Activation : int { silu = 0, gelu_tanh = 1, soft_cap = 2 };

struct ActivationArgs {
    void* out;       // [num_rows, num_cols] of dtype
    const void* x;   // [num_rows, num_cols] of dtype; gated: [num_rows, 2 * num_cols], what is activated first
    int64_t num_rows;
    int64_t num_cols;
    bool is_gated;
    Activation kind;
    float cap;  // of soft_cap: cap * tanh(x / cap)
    DType dtype;
    int num_threads;
};

struct QkvHeadsArgs {
    void* q;                   // [num_tokens, num_heads, head_size] of dtype
    void* k;                   // [num_tokens, num_kv_heads, head_size] of dtype
    void* v;                   // as k
    const void* qkv;           // [num_tokens, (num_heads + 2 * num_kv_heads) * head_size] of dtype
    const int64_t* positions;  // [num_tokens]
    const float* cos;          // [.., half], or null: nothing is rotated
    const float* sin;          // as cos
    const float* q_norm;       // [q_norm_size], or null
    const float* k_norm;       // [k_norm_size], or null
    int64_t num_tokens;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_size;
    int64_t half;         // rotated pairs per head
    int64_t q_norm_size;  // one head, or all of them
    int64_t k_norm_size;
    float eps;
    DType dtype;
    int num_threads;
};

#define MOTET_DECLARE_KERNELS(isa)                                                                      \
    namespace isa {                                                                                     \
    void rms_norm(const RmsNormArgs&);                                                                  \
    void add_rms_norm(const AddRmsNormArgs&);                                                           \
    void linear(const LinearArgs&);                                                                     \
    void pack_linear(void* packed, const void* weight, int64_t num_outputs, int64_t num_inputs, DType); \
    void unpack_rows(const UnpackRowsArgs&);                                                            \
    void activation(const ActivationArgs&);                                                             \
    void qkv_heads(const QkvHeadsArgs&);                                                                \
    }

MOTET_DECLARE_KERNELS(generic)
MOTET_DECLARE_KERNELS(avx2)
MOTET_DECLARE_KERNELS(avx512)
MOTET_DECLARE_KERNELS(avx512_bf16)

#undef MOTET_DECLARE_KERNELS

}  // namespace motet
