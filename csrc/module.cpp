// The Python module motet._kernels: raw addresses in, kernels out. motet/ops/cpu checks what is passed
// here. An address may be a reference to a buffer of a program, and a count a symbol (program.h).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "kernels.h"
#include "program.h"

namespace nb = nanobind;

namespace motet {
namespace {

#define MOTET_MEMBER(name, Args) void (*name)(const Args&, const Team&);
#define MOTET_NAME(name, Args) name,

struct KernelTable {
    const char* isa;
    bool (*runs_here)();
    void (*pack_linear)(void*, const void*, int64_t, int64_t, DType);
    void (*pack_quantized)(const PackQuantizedArgs&);
    int64_t (*packed_bytes)(QuantKind, int64_t, int64_t, int64_t);
    MOTET_FOR_EACH_KERNEL(MOTET_MEMBER)
};

// A table's kernels are found through its namespace.
#define MOTET_TABLE(isa, runs_here)                                                      \
    [] {                                                                                 \
        using namespace motet::isa;                                                      \
        return KernelTable{#isa, runs_here, pack_linear, pack_quantized, packed_bytes, MOTET_FOR_EACH_KERNEL(MOTET_NAME)}; \
    }()

#ifdef MOTET_HAS_AVX2
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#if defined(MOTET_HAS_AVX512) || defined(MOTET_HAS_AVX512_BF16)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#ifdef MOTET_HAS_AVX512_BF16
bool has_avx512_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

bool runs_anywhere() { return true; }

// From plain to best: the last one that runs on this machine is the one to use.
const KernelTable kTables[] = {
    MOTET_TABLE(generic, runs_anywhere),
#ifdef MOTET_HAS_AVX2
    MOTET_TABLE(avx2, has_avx2),
#endif
#ifdef MOTET_HAS_AVX512
    MOTET_TABLE(avx512, has_avx512),
#endif
#ifdef MOTET_HAS_AVX512_BF16
    MOTET_TABLE(avx512_bf16, has_avx512_bf16),
#endif
};

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

CacheDType cache_dtype_of(int code) {
    if (code < int(CacheDType::f32) || code > int(CacheDType::f8)) throw nb::value_error("unknown cache dtype code");
    return CacheDType(code);
}

QuantKind kind_of(int code) {
    for (const QuantKind kind : kQuantKinds) {
        if (code == int(kind)) return kind;
    }
    throw nb::value_error("unknown kind of quantised weights");
}

LinearOutput output(uintptr_t out, uintptr_t bias, uintptr_t residual, int64_t stride, int64_t first_column, int dtype,
                    bool wants_f32) {
    return {pointer<void>(out), pointer<const void>(bias), pointer<const void>(residual), stride, first_column,
            dtype_of(dtype),    wants_f32};
}

// Kernel calls as Python makes them: each builds the arguments and hands them over, to be run or to be recorded.
class Calls {
public:
    Calls(const std::string& isa, Target& target) : table_(&find_table(isa)), target_(&target) {}

    const KernelTable& table() const { return *table_; }
    std::string isa() const { return table_->isa; }

#define MOTET_SUBMIT(name, ...) target_->submit(make_node(#name, table_->name, __VA_ARGS__))

    void rms_norm(uintptr_t out, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t num_cols, float eps,
                  int dtype) const {
        MOTET_SUBMIT(rms_norm, RmsNormArgs{pointer<void>(out), pointer<const void>(x), pointer<const float>(weight),
                                           num_rows, num_cols, eps, dtype_of(dtype)});
    }

    void layer_norm(uintptr_t out, uintptr_t x, uintptr_t weight, uintptr_t bias, int64_t num_rows, int64_t num_cols,
                    float eps, int dtype) const {
        MOTET_SUBMIT(layer_norm, LayerNormArgs{pointer<void>(out), pointer<const void>(x), pointer<const float>(weight),
                                               pointer<const float>(bias), num_rows, num_cols, eps, dtype_of(dtype)});
    }

    void linear(uintptr_t out, uintptr_t bias, uintptr_t residual, int64_t stride, int64_t first_column, int dtype,
                bool wants_f32, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t num_outputs,
                int64_t num_inputs, int weight_dtype) const {
        MOTET_SUBMIT(linear, LinearArgs{output(out, bias, residual, stride, first_column, dtype, wants_f32),
                                        pointer<const void>(x), pointer<const void>(weight), num_rows, num_outputs,
                                        num_inputs, dtype_of(weight_dtype)});
    }

    void pack_linear(uintptr_t packed, uintptr_t weight, int64_t num_outputs, int64_t num_inputs, int dtype) const {
        table_->pack_linear(pointer<void>(packed), pointer<const void>(weight), num_outputs, num_inputs,
                            dtype_of(dtype));
    }

    void unpack_rows(uintptr_t out, uintptr_t weight, uintptr_t rows, int64_t num_rows, int64_t num_inputs,
                     float scale, int dtype, int weight_dtype) const {
        MOTET_SUBMIT(unpack_rows, UnpackRowsArgs{pointer<void>(out), pointer<const void>(weight),
                                                 pointer<const int64_t>(rows), num_rows, num_inputs, scale,
                                                 dtype_of(dtype), dtype_of(weight_dtype)});
    }

    void quantize_rows(uintptr_t out, uintptr_t x, int64_t num_rows, int64_t num_cols, int64_t group, int dtype) const {
        MOTET_SUBMIT(quantize_rows, QuantizeRowsArgs{pointer<void>(out), pointer<const void>(x), num_rows, num_cols,
                                                     group, dtype_of(dtype)});
    }

    void quant_linear(uintptr_t out, uintptr_t bias, uintptr_t residual, int64_t stride, int64_t first_column,
                      int dtype, bool wants_f32, uintptr_t rows, uintptr_t weight, int64_t num_rows,
                      int64_t num_outputs, int64_t num_inputs, int64_t group, int kind) const {
        MOTET_SUBMIT(quant_linear,
                     QuantLinearArgs{output(out, bias, residual, stride, first_column, dtype, wants_f32),
                                     pointer<const void>(rows), pointer<const void>(weight), num_rows, num_outputs,
                                     num_inputs, group, kind_of(kind)});
    }

    int64_t packed_bytes(int kind, int64_t num_outputs, int64_t num_inputs, int64_t group) const {
        return table_->packed_bytes(kind_of(kind), num_outputs, num_inputs, group);
    }

    void pack_quantized(uintptr_t packed, uintptr_t source, int64_t num_outputs, int64_t num_inputs, int64_t group,
                        int kind, int dtype) const {
        table_->pack_quantized({pointer<void>(packed), pointer<const void>(source), num_outputs, num_inputs, group,
                                kind_of(kind), dtype_of(dtype)});
    }

    void unpack_quantized(uintptr_t out, uintptr_t weight, uintptr_t rows, int64_t num_rows, int64_t num_inputs,
                          int64_t group, float scale, int kind, int dtype) const {
        MOTET_SUBMIT(unpack_quantized, UnpackQuantizedArgs{pointer<void>(out), pointer<const void>(weight),
                                                           pointer<const int64_t>(rows), num_rows, num_inputs, group,
                                                           scale, kind_of(kind), dtype_of(dtype)});
    }

    void activation(uintptr_t out, uintptr_t x, int64_t num_rows, int64_t num_cols, bool is_gated, int kind, float cap,
                    int dtype) const {
        if (kind < 0 || kind > int(Activation::relu)) throw nb::value_error("unknown activation code");
        MOTET_SUBMIT(activation, ActivationArgs{pointer<void>(out), pointer<const void>(x), num_rows, num_cols,
                                                is_gated, Activation(kind), cap, dtype_of(dtype)});
    }

    void route(uintptr_t weights, uintptr_t places, uintptr_t experts, uintptr_t tokens, uintptr_t logits,
               int64_t num_tokens, int64_t num_experts, int64_t top_k, bool renormalize, int dtype) const {
        MOTET_SUBMIT(route, RouteArgs{pointer<float>(weights), pointer<int64_t>(places), pointer<int32_t>(experts),
                                      pointer<int64_t>(tokens), pointer<const void>(logits), num_tokens, num_experts,
                                      top_k, renormalize, dtype_of(dtype)});
    }

    void expert_linear(uintptr_t out, int64_t stride, int64_t first_column, int dtype, uintptr_t x, uintptr_t weights,
                       uintptr_t experts, int64_t num_rows, int64_t num_outputs, int64_t num_inputs,
                       int weight_dtype) const {
        MOTET_SUBMIT(expert_linear,
                     ExpertLinearArgs{{output(out, 0, 0, stride, first_column, dtype, false), pointer<const void>(x),
                                       nullptr, num_rows, num_outputs, num_inputs, dtype_of(weight_dtype)},
                                      pointer<const void* const>(weights),
                                      pointer<const int32_t>(experts)});
    }

    void quant_expert_linear(uintptr_t out, int64_t stride, int64_t first_column, int dtype, uintptr_t rows,
                             uintptr_t weights, uintptr_t experts, int64_t num_rows, int64_t num_outputs,
                             int64_t num_inputs, int64_t group, int kind) const {
        MOTET_SUBMIT(quant_expert_linear,
                     QuantExpertLinearArgs{{output(out, 0, 0, stride, first_column, dtype, false),
                                            pointer<const void>(rows), nullptr, num_rows, num_outputs, num_inputs,
                                            group, kind_of(kind)},
                                           pointer<const void* const>(weights),
                                           pointer<const int32_t>(experts)});
    }

    void combine_experts(uintptr_t out, uintptr_t x, uintptr_t weights, uintptr_t places, int64_t num_tokens,
                         int64_t num_cols, int64_t top_k, int dtype) const {
        MOTET_SUBMIT(combine_experts, CombineExpertsArgs{pointer<void>(out), pointer<const void>(x),
                                                         pointer<const float>(weights), pointer<const int64_t>(places),
                                                         num_tokens, num_cols, top_k, dtype_of(dtype)});
    }

    void lora_shrink(uintptr_t out, uintptr_t x, uintptr_t a, uintptr_t scales, uintptr_t ranks, uintptr_t tokens,
                     uintptr_t slots, int64_t num_rows, int64_t num_parts, int64_t max_rank, int64_t num_inputs,
                     int dtype) const {
        MOTET_SUBMIT(lora_shrink,
                     LoraShrinkArgs{pointer<float>(out), pointer<const void>(x), pointer<const void>(a),
                                    pointer<const float>(scales), pointer<const int32_t>(ranks),
                                    pointer<const int64_t>(tokens), pointer<const int32_t>(slots), num_rows, num_parts,
                                    max_rank, num_inputs, dtype_of(dtype)});
    }

    void lora_expand(uintptr_t y, uintptr_t x, uintptr_t b, uintptr_t ends, uintptr_t ranks, uintptr_t tokens,
                     uintptr_t slots, int64_t num_rows, int64_t num_parts, int64_t max_rank, int64_t num_outputs,
                     int dtype) const {
        MOTET_SUBMIT(lora_expand,
                     LoraExpandArgs{pointer<void>(y), pointer<const float>(x), pointer<const void>(b),
                                    pointer<const int64_t>(ends), pointer<const int32_t>(ranks),
                                    pointer<const int64_t>(tokens), pointer<const int32_t>(slots), num_rows, num_parts,
                                    max_rank, num_outputs, dtype_of(dtype)});
    }

    void add(uintptr_t out, uintptr_t x, uintptr_t y, int64_t num_rows, int64_t num_cols, int dtype) const {
        MOTET_SUBMIT(add, AddArgs{pointer<void>(out), pointer<const void>(x), pointer<const void>(y), num_rows,
                                  num_cols, dtype_of(dtype)});
    }

    void greedy(uintptr_t token_ids, uintptr_t scores, int64_t num_rows, int64_t num_cols) const {
        MOTET_SUBMIT(greedy, GreedyArgs{pointer<int64_t>(token_ids), pointer<const float>(scores), num_rows, num_cols});
    }

    void draw(uintptr_t token_ids, uintptr_t scores, uintptr_t rows, uintptr_t temperature, uintptr_t log_min_p,
              uintptr_t top_k, uintptr_t top_p, uintptr_t keys, int64_t num_rows, int64_t num_cols) const {
        MOTET_SUBMIT(draw, DrawArgs{pointer<int64_t>(token_ids), pointer<const float>(scores),
                                    pointer<const int64_t>(rows), pointer<const float>(temperature),
                                    pointer<const float>(log_min_p), pointer<const int64_t>(top_k),
                                    pointer<const double>(top_p), pointer<const int64_t>(keys), num_rows, num_cols});
    }

    void describe(uintptr_t values, uintptr_t ids, uintptr_t ranks, uintptr_t logits, uintptr_t token_ids,
                  uintptr_t num_top, int64_t num_rows, int64_t num_cols, int64_t width) const {
        MOTET_SUBMIT(describe,
                     DescribeArgs{pointer<float>(values), pointer<int64_t>(ids), pointer<int64_t>(ranks),
                                  pointer<const float>(logits), pointer<const int64_t>(token_ids),
                                  pointer<const int64_t>(num_top), num_rows, num_cols, width});
    }

    void select_rows(uintptr_t out, uintptr_t x, uintptr_t rows, int64_t num_rows, int64_t row_bytes) const {
        MOTET_SUBMIT(select_rows, SelectRowsArgs{pointer<void>(out), pointer<const void>(x),
                                                 pointer<const int64_t>(rows), num_rows, row_bytes});
    }

    void qkv_heads(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t qkv, uintptr_t positions, uintptr_t cos,
                   uintptr_t sin, uintptr_t q_norm, uintptr_t k_norm, int64_t num_tokens, int64_t num_heads,
                   int64_t num_kv_heads, int64_t head_size, int64_t half, int64_t q_norm_size, int64_t k_norm_size,
                   float eps, int dtype) const {
        MOTET_SUBMIT(qkv_heads,
                     QkvHeadsArgs{pointer<void>(q), pointer<void>(k), pointer<void>(v), pointer<const void>(qkv),
                                  pointer<const int64_t>(positions), pointer<const float>(cos),
                                  pointer<const float>(sin), pointer<const float>(q_norm),
                                  pointer<const float>(k_norm), num_tokens, num_heads, num_kv_heads, head_size, half,
                                  q_norm_size, k_norm_size, eps, dtype_of(dtype)});
    }

    void write_kv(uintptr_t k_cache, uintptr_t v_cache, uintptr_t k_scale, uintptr_t v_scale, uintptr_t k, uintptr_t v,
                  uintptr_t slots, int64_t num_tokens, int64_t num_kv_heads, int64_t head_size, int64_t k_token_stride,
                  int64_t k_head_stride, int64_t v_token_stride, int64_t v_head_stride, int dtype,
                  int cache_dtype) const {
        MOTET_SUBMIT(write_kv, WriteKvArgs{pointer<void>(k_cache), pointer<void>(v_cache), pointer<float>(k_scale),
                                           pointer<float>(v_scale), pointer<const void>(k), pointer<const void>(v),
                                           pointer<const int64_t>(slots), num_tokens, num_kv_heads, head_size,
                                           {k_token_stride, k_head_stride}, {v_token_stride, v_head_stride},
                                           dtype_of(dtype), cache_dtype_of(cache_dtype)});
    }

    void paged_attention(uintptr_t out, uintptr_t q, uintptr_t k_cache, uintptr_t v_cache, uintptr_t k_scale,
                         uintptr_t v_scale, uintptr_t rows, uintptr_t block_table, uintptr_t alibi_slopes,
                         uintptr_t sinks, int64_t num_rows, int64_t table_stride, int64_t block_size, int64_t window,
                         int64_t num_heads, int64_t num_kv_heads, int64_t head_size, int64_t q_token_stride,
                         int64_t q_head_stride, float scale, float soft_cap, int dtype, int cache_dtype) const {
        MOTET_SUBMIT(paged_attention,
                     PagedAttentionArgs{pointer<void>(out), pointer<const void>(q), pointer<const void>(k_cache),
                                        pointer<const void>(v_cache), pointer<const float>(k_scale),
                                        pointer<const float>(v_scale), pointer<const int32_t>(rows),
                                        pointer<const int32_t>(block_table), pointer<const float>(alibi_slopes),
                                        pointer<const float>(sinks), num_rows, table_stride, block_size, window,
                                        num_heads, num_kv_heads, head_size, {q_token_stride, q_head_stride}, scale,
                                        soft_cap, dtype_of(dtype), cache_dtype_of(cache_dtype)});
    }

#undef MOTET_SUBMIT

private:
    const KernelTable* table_;
    Target* target_;
};

// Runs each call at once.
class Eager : public Target {
public:
    void submit(const Node& node) override { run_nodes(&node, 1, num_threads, nullptr, nullptr); }

    int num_threads = 1;
};

// (Bases that have virtual functions would move Calls away from the start of the object, where nanobind looks for it.)
struct Kernels : Calls {
    explicit Kernels(const std::string& isa) : Calls(isa, eager) {}

    Eager eager;
};

// Appends each call to a program.
struct Recorder : Calls {
    explicit Recorder(const std::string& isa) : Calls(isa, program) {}

    Program program;
};

}  // namespace
}  // namespace motet

NB_MODULE(_kernels, m) {
    using motet::Calls;
    using motet::Kernels;
    using motet::Recorder;
    const auto no_gil = nb::call_guard<nb::gil_scoped_release>();

    nb::set_leak_warnings(false);  // a Kernels object lives as long as the process
    m.attr("LINEAR_BLOCK") = motet::kLinearBlock;
    m.attr("QUANT_BLOCK") = motet::kQuantBlock;
    m.attr("GROUP_META_BYTES") = sizeof(motet::GroupMeta);
    m.def("supported_isas", &motet::supported_isas);
    m.def("count_of_symbol", &motet::count_of_symbol);
    nb::class_<Calls>(m, "Calls")
        .def_prop_ro("isa", &Calls::isa)
        .def("rms_norm", &Calls::rms_norm, no_gil)
        .def("layer_norm", &Calls::layer_norm, no_gil)
        .def("linear", &Calls::linear, no_gil)
        .def("pack_linear", &Calls::pack_linear, no_gil)
        .def("unpack_rows", &Calls::unpack_rows, no_gil)
        .def("quantize_rows", &Calls::quantize_rows, no_gil)
        .def("quant_linear", &Calls::quant_linear, no_gil)
        .def("packed_bytes", &Calls::packed_bytes)
        .def("pack_quantized", &Calls::pack_quantized, no_gil)
        .def("unpack_quantized", &Calls::unpack_quantized, no_gil)
        .def("activation", &Calls::activation, no_gil)
        .def("route", &Calls::route, no_gil)
        .def("expert_linear", &Calls::expert_linear, no_gil)
        .def("quant_expert_linear", &Calls::quant_expert_linear, no_gil)
        .def("combine_experts", &Calls::combine_experts, no_gil)
        .def("lora_shrink", &Calls::lora_shrink, no_gil)
        .def("lora_expand", &Calls::lora_expand, no_gil)
        .def("add", &Calls::add, no_gil)
        .def("greedy", &Calls::greedy, no_gil)
        .def("draw", &Calls::draw, no_gil)
        .def("describe", &Calls::describe, no_gil)
        .def("select_rows", &Calls::select_rows, no_gil)
        .def("qkv_heads", &Calls::qkv_heads, no_gil)
        .def("write_kv", &Calls::write_kv, no_gil)
        .def("paged_attention", &Calls::paged_attention, no_gil);
    nb::class_<Kernels, Calls>(m, "Kernels")
        .def(nb::init<const std::string&>(), nb::arg("isa"))
        .def_prop_rw(
            "num_threads", [](const Kernels& self) { return self.eager.num_threads; },
            [](Kernels& self, int count) { self.eager.num_threads = count; });

    using Counts = std::vector<int64_t>;
    nb::class_<Recorder, Calls>(m, "Recorder")
        .def(nb::init<const std::string&>(), nb::arg("isa"))
        .def("add_input", [](Recorder& self) { return self.program.add_input(); })
        .def("add_buffer", [](Recorder& self, int64_t rows, int64_t row_bytes) {
            return self.program.add_buffer(rows, row_bytes);
        })
        .def("keep", [](Recorder& self, uint64_t reference) { self.program.keep(reference); })
        .def("finish", [](Recorder& self, int64_t num_symbols) { self.program.finish(num_symbols); })
        .def_prop_ro("num_nodes", [](const Recorder& self) { return self.program.num_nodes(); })
        .def("node_name", [](const Recorder& self, int64_t node) { return self.program.node_name(node); })
        .def("first_use", [](const Recorder& self, uint64_t reference) { return self.program.first_use(reference); })
        .def("num_arena_bytes", [](const Recorder& self, const Counts& counts, bool apart) {
            return self.program.num_arena_bytes(counts, apart);
        })
        .def("place_of", [](const Recorder& self, uint64_t reference, const Counts& counts, bool apart) {
            return self.program.place_of(reference, counts, apart);
        })
        .def(
            "time_nodes",
            [](Recorder& self, Counts counts, std::vector<uint64_t> inputs, uintptr_t arena, int num_threads) {
                return self.program.time_nodes({std::move(counts), std::move(inputs), motet::pointer<char>(arena),
                                                num_threads, false, false});
            },
            no_gil)
        .def(
            "replay",
            [](Recorder& self, Counts counts, std::vector<uint64_t> inputs, uintptr_t arena, int num_threads,
               bool apart, bool poisons) {
                self.program.replay({std::move(counts), std::move(inputs), motet::pointer<char>(arena), num_threads,
                                     apart, poisons});
            },
            no_gil);
}
