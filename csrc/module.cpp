// The Python module motet._kernels: raw addresses in, kernels out. motet/ops/cpu checks what is passed here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;

namespace motet {
namespace {

struct KernelTable {
    const char* isa;
    bool (*runs_here)();
    void (*rms_norm)(const RmsNormArgs&);
    void (*add_rms_norm)(const AddRmsNormArgs&);
    void (*linear)(const LinearArgs&);
    void (*pack_linear)(void*, const void*, int64_t, int64_t, DType);
    void (*unpack_rows)(const UnpackRowsArgs&);
    void (*activation)(const ActivationArgs&);
    void (*qkv_heads)(const QkvHeadsArgs&);
    void (*write_kv)(const WriteKvArgs&);
    void (*paged_attention)(const PagedAttentionArgs&);
};

#define MOTET_KERNELS(isa)                                                                             \
    isa::rms_norm, isa::add_rms_norm, isa::linear, isa::pack_linear, isa::unpack_rows, isa::activation, \
        isa::qkv_heads, isa::write_kv, isa::paged_attention

#if defined(MOTET_HAS_AVX512) || defined(MOTET_HAS_AVX512_BF16)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

// From plain to best: the last one that runs on this machine is the one to use.
const KernelTable kTables[] = {
    {"generic", [] { return true; }, MOTET_KERNELS(generic)},
#ifdef MOTET_HAS_AVX2
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, MOTET_KERNELS(avx2)},
#endif
#ifdef MOTET_HAS_AVX512
    {"avx512", has_avx512, MOTET_KERNELS(avx512)},
#endif
#ifdef MOTET_HAS_AVX512_BF16
    {"avx512_bf16", [] { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }, MOTET_KERNELS(avx512_bf16)},
#endif
};

#undef MOTET_KERNELS

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const KernelTable& table : kTables) {
        if (table.runs_here()) names.push_back(table.isa);
    }
    return names;
}

const KernelTable& find_table(const std::string& isa) {
    for (const KernelTable& table : kTables) {
        if (isa == table.isa && table.runs_here()) return table;
    }
    throw nb::value_error(("this machine cannot run kernels for '" + isa + "'").c_str());
}

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

DType dtype_of(int code) {
    if (code < int(DType::f32) || code > int(DType::f16)) throw nb::value_error("unknown dtype code");
    return DType(code);
}

RmsNormArgs norm_args(uintptr_t out, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t num_cols, float eps,
                      int dtype, int num_threads) {
    return {pointer<void>(out), pointer<const void>(x), pointer<const float>(weight), num_rows, num_cols, eps,
            dtype_of(dtype),    num_threads};
}

class Kernels {
public:
    explicit Kernels(const std::string& isa) : table_(&find_table(isa)) {}

    std::string isa() const { return table_->isa; }

    void rms_norm(uintptr_t out, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t num_cols, float eps,
                  int dtype, int num_threads) const {
        table_->rms_norm(norm_args(out, x, weight, num_rows, num_cols, eps, dtype, num_threads));
    }

    void add_rms_norm(uintptr_t out, uintptr_t sum, uintptr_t x, uintptr_t residual, uintptr_t weight,
                      int64_t num_rows, int64_t num_cols, float eps, int dtype, int num_threads) const {
        const RmsNormArgs norm = norm_args(out, x, weight, num_rows, num_cols, eps, dtype, num_threads);
        table_->add_rms_norm({norm, pointer<const void>(residual), pointer<void>(sum)});
    }

    void linear(uintptr_t out, uintptr_t x, uintptr_t weight, uintptr_t bias, uintptr_t residual, int64_t num_rows,
                int64_t num_outputs, int64_t num_inputs, int dtype, bool wants_f32, int num_threads) const {
        table_->linear({pointer<void>(out), pointer<const void>(x), pointer<const void>(weight),
                        pointer<const void>(bias), pointer<const void>(residual), num_rows, num_outputs, num_inputs,
                        dtype_of(dtype), wants_f32, num_threads});
    }

    void pack_linear(uintptr_t packed, uintptr_t weight, int64_t num_outputs, int64_t num_inputs, int dtype) const {
        table_->pack_linear(pointer<void>(packed), pointer<const void>(weight), num_outputs, num_inputs,
                            dtype_of(dtype));
    }

    void unpack_rows(uintptr_t out, uintptr_t weight, uintptr_t rows, int64_t num_rows, int64_t num_inputs,
                     int dtype) const {
        table_->unpack_rows({pointer<void>(out), pointer<const void>(weight), pointer<const int64_t>(rows), num_rows,
                             num_inputs, dtype_of(dtype)});
    }

    void activation(uintptr_t out, uintptr_t x, int64_t num_rows, int64_t num_cols, bool is_gated, int kind, float cap,
                    int dtype, int num_threads) const {
        if (kind < 0 || kind > int(Activation::soft_cap)) throw nb::value_error("unknown activation code");
        table_->activation({pointer<void>(out), pointer<const void>(x), num_rows, num_cols, is_gated, Activation(kind), cap,
                            dtype_of(dtype), num_threads});
    }

    void qkv_heads(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t qkv, uintptr_t positions, uintptr_t cos,
                   uintptr_t sin, uintptr_t q_norm, uintptr_t k_norm, int64_t num_tokens, int64_t num_heads,
                   int64_t num_kv_heads, int64_t head_size, int64_t half, int64_t q_norm_size, int64_t k_norm_size,
                   float eps, int dtype, int num_threads) const {
        table_->qkv_heads({pointer<void>(q), pointer<void>(k), pointer<void>(v), pointer<const void>(qkv),
                           pointer<const int64_t>(positions), pointer<const float>(cos), pointer<const float>(sin),
                           pointer<const float>(q_norm), pointer<const float>(k_norm), num_tokens, num_heads,
                           num_kv_heads, head_size, half, q_norm_size, k_norm_size, eps, dtype_of(dtype),
                           num_threads});
    }

    void write_kv(uintptr_t k_cache, uintptr_t v_cache, uintptr_t k, uintptr_t v, uintptr_t slots, int64_t num_tokens,
                  int64_t num_kv_heads, int64_t head_size, int64_t k_token_stride, int64_t k_head_stride,
                  int64_t v_token_stride, int64_t v_head_stride, int dtype, int cache_dtype, int num_threads) const {
        table_->write_kv({pointer<void>(k_cache), pointer<void>(v_cache), pointer<const void>(k),
                          pointer<const void>(v), pointer<const int64_t>(slots), num_tokens, num_kv_heads, head_size,
                          {k_token_stride, k_head_stride}, {v_token_stride, v_head_stride}, dtype_of(dtype),
                          dtype_of(cache_dtype), num_threads});
    }

    void paged_attention(uintptr_t out, uintptr_t q, uintptr_t k_cache, uintptr_t v_cache, uintptr_t rows,
                         uintptr_t block_table, uintptr_t alibi_slopes, uintptr_t sinks, int64_t num_rows,
                         int64_t table_stride, int64_t block_size, int64_t window, int64_t num_heads,
                         int64_t num_kv_heads, int64_t head_size, int64_t q_token_stride, int64_t q_head_stride,
                         float scale, float soft_cap, int dtype, int cache_dtype, int num_threads) const {
        table_->paged_attention({pointer<void>(out), pointer<const void>(q), pointer<const void>(k_cache),
                                 pointer<const void>(v_cache), pointer<const int32_t>(rows),
                                 pointer<const int32_t>(block_table), pointer<const float>(alibi_slopes),
                                 pointer<const float>(sinks), num_rows, table_stride, block_size, window, num_heads,
                                 num_kv_heads, head_size, {q_token_stride, q_head_stride}, scale, soft_cap,
                                 dtype_of(dtype), dtype_of(cache_dtype), num_threads});
    }

private:
    const KernelTable* table_;
};

}  // namespace
}  // namespace motet

NB_MODULE(_kernels, m) {
    using motet::Kernels;
    const auto no_gil = nb::call_guard<nb::gil_scoped_release>();

    nb::set_leak_warnings(false);  // a Kernels object lives as long as the process
    m.attr("LINEAR_BLOCK") = motet::kLinearBlock;
    m.def("supported_isas", &motet::supported_isas);
    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string&>(), nb::arg("isa"))
        .def_prop_ro("isa", &Kernels::isa)
        .def("rms_norm", &Kernels::rms_norm, no_gil)
        .def("add_rms_norm", &Kernels::add_rms_norm, no_gil)
        .def("linear", &Kernels::linear, no_gil)
        .def("pack_linear", &Kernels::pack_linear, no_gil)
        .def("unpack_rows", &Kernels::unpack_rows, no_gil)
        .def("activation", &Kernels::activation, no_gil)
        .def("qkv_heads", &Kernels::qkv_heads, no_gil)
        .def("write_kv", &Kernels::write_kv, no_gil)
        .def("paged_attention", &Kernels::paged_attention, no_gil);
}
