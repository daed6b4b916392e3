// The greatest score of each row. Two passes: its value, four vectors side by side, then the first place that has it; a
// maximum does not depend on the order in which it is found. Defined by motet/sampling/sampler.py.
#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kVectors = 4;
constexpr int64_t kStride = kVectors * kLanes;

// NaN if the row has one.
float greatest(const float* scores, int64_t count) {
    f32x16 best[kVectors];
    u32_part has_nan[kVectors] = {};
    for (int64_t v = 0; v < kVectors; ++v) best[v] = broadcast(-__builtin_inff());
    int64_t i = 0;
    for (; i + kStride <= count; i += kStride) {
#pragma GCC unroll 4
        for (int64_t v = 0; v < kVectors; ++v) {
            const f32x16 x = load(scores + i + v * kLanes);
            for (int64_t p = 0; p < kParts; ++p) has_nan[v] |= bit_cast<u32_part>(x.part[p] != x.part[p]);
            best[v] = max(best[v], x);
        }
    }
    const u32_part any_nan = (has_nan[0] | has_nan[1]) | (has_nan[2] | has_nan[3]);
    for (int64_t j = 0; j < kWidth; ++j) {
        if (any_nan[j]) return __builtin_nanf("");
    }
    float result = largest(max(max(best[0], best[1]), max(best[2], best[3])));
    for (; i < count; ++i) {
        if (scores[i] != scores[i]) return scores[i];
        result = scores[i] > result ? scores[i] : result;
    }
    return result;
}

int64_t find(const float* scores, int64_t count, float value) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        bool is_here = false;
        for (int64_t j = 0; j < kLanes; ++j) is_here |= scores[i + j] == value;
        if (is_here) break;
    }
    while (scores[i] != value) ++i;
    return i;
}

}  // namespace

void greedy(const GreedyArgs& a, const Team& team) {
    const Range rows = team.share(a.num_rows);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
        const float* scores = a.scores + r * a.num_cols;
        const float best = greatest(scores, a.num_cols);
        a.token_ids[r] = best - best == 0.0f ? find(scores, a.num_cols, best) : -1;
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
