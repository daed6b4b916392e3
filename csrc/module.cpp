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
};

// From plain to best: the last one that runs on this machine is the one to use.
const KernelTable kTables[] = {
    {"generic", [] { return true; }, generic::rms_norm, generic::add_rms_norm},
#ifdef MOTET_HAS_AVX2
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, avx2::rms_norm,
     avx2::add_rms_norm},
#endif
#ifdef MOTET_HAS_AVX512
    {"avx512",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     },
     avx512::rms_norm, avx512::add_rms_norm},
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

RmsNormArgs norm_args(uintptr_t out, uintptr_t x, uintptr_t weight, int64_t num_rows, int64_t num_cols, float eps,
                      int dtype, int num_threads) {
    if (dtype < int(DType::f32) || dtype > int(DType::f16)) throw nb::value_error("unknown dtype code");
    return {pointer<void>(out), pointer<const void>(x), pointer<const float>(weight), num_rows, num_cols, eps,
            DType(dtype),       num_threads};
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

private:
    const KernelTable* table_;
};

}  // namespace
}  // namespace motet

NB_MODULE(_kernels, m) {
    using motet::Kernels;
    const auto no_gil = nb::call_guard<nb::gil_scoped_release>();

    m.def("supported_isas", &motet::supported_isas);
    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string&>(), nb::arg("isa"))
        .def_prop_ro("isa", &Kernels::isa)
        .def("rms_norm", &Kernels::rms_norm, no_gil)
        .def("add_rms_norm", &Kernels::add_rms_norm, no_gil);
}
