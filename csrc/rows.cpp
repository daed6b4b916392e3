// What only moves or adds rows. Elementwise, and so exact by itself. Defined by motet/ops/reference/linear.py.
#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 8192;  // of a member of the team

template <class T>
void add_as(const AddArgs& a, const Team& team) {
    const Range part = team.share(a.num_rows, kMinElements / (a.num_cols + 1));
    const int64_t end = part.end * a.num_cols;
    T* out = static_cast<T*>(a.out);
    const T* x = static_cast<const T*>(a.x);
    const T* y = static_cast<const T*>(a.y);
    int64_t i = part.begin * a.num_cols;
    for (; i + kLanes <= end; i += kLanes) store(out + i, load(x + i) + load(y + i));
    if (i < end) store_first(out + i, load_first(x + i, end - i) + load_first(y + i, end - i), end - i);
}

}  // namespace

void add(const AddArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return add_as<float>(a, team);
        case DType::bf16: return add_as<bf16>(a, team);
        case DType::f16: return add_as<f16>(a, team);
    }
}

void select_rows(const SelectRowsArgs& a, const Team& team) {
    const Range part = team.share(a.num_rows, 4 * kMinElements / (a.row_bytes + 1));
    for (int64_t i = part.begin; i < part.end; ++i) {
        std::memcpy(static_cast<char*>(a.out) + i * a.row_bytes,
                    static_cast<const char*>(a.x) + a.rows[i] * a.row_bytes, size_t(a.row_bytes));
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
