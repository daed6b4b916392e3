// RMSNorm (Zhang and Sennrich, 2019). Defined by motet/ops/reference/norm.py.
#include "kernels.h"
#include "norm.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 8192;  // of a member of the team

template <class T>
void rms_norm_as(const RmsNormArgs& a, const Team& team) {
    T* out = static_cast<T*>(a.out);
    const T* x = static_cast<const T*>(a.x);
    const Range rows = team.share(a.num_rows, kMinElements / (a.num_cols + 1));
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        norm_row(out + r * a.num_cols, x + r * a.num_cols, a.weight, a.num_cols, a.eps);
    }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, const Team& team) {
    switch (args.dtype) {
        case DType::f32: return rms_norm_as<float>(args, team);
        case DType::bf16: return rms_norm_as<bf16>(args, team);
        case DType::f16: return rms_norm_as<f16>(args, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
