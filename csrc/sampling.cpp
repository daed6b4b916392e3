// Drawing a token of each row, and describing one. Members of the team take row by row; a row has one member. Whatever
// order a row is walked in, maxima and integer sums come out the same, and the token is the first of all in a strict
// order. Defined by motet/sampling (steps.py, draw.py, logprobs.py), bit for bit.
#include "kernels.h"
#include "sampling_row.h"
#include "vec_math.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr double kSlack = 1.001;  // covers the rounding of a bound

void keep_top_k(Row& row, int64_t k) {
    if (k >= row.count) return;
    Heap heap = row.collect(row.reached_by(k), kAnyBin);
    if (heap.size < k) return;
    for (int64_t n = 1; n < k; ++n) heap.pop();
    row.least_key = key_of(score_of(heap.pop()), -1);  // equals of the k-th stay
}

// Only the tokens of the bin in which the nucleus ends are sorted.
void keep_top_p(Row& row, double p) {
    if (p >= 1.0) return;
    int64_t bins[kNumBins], total = 0;
    row.fill_bins(bins);
    for (int64_t n = 0; n < kNumBins; ++n) total += bins[n];
    const double limit = p * double(total);
    int64_t last = 0, mass = 0;
    while (double(mass + bins[last]) < limit) mass += bins[last++];
    Heap heap = row.collect(-kInfinity, last);
    uint64_t key = heap.pop();
    for (mass += row.mass_of(score_of(key)); double(mass) < limit && heap.size > 0;) {
        key = heap.pop();
        mass += row.mass_of(score_of(key));
    }
    row.least_key = key;
}

// A bit for each lane whose uniform may reach the bound.
MOTET_INLINE uint32_t reaching(const u64x8& uniforms, uint64_t bound) {
#if defined(__AVX512F__)
    return _mm512_cmpge_epu64_mask((__m512i)uniforms, _mm512_set1_epi64(int64_t(bound)));
#else
    uint32_t mask = 0;
    for (int64_t i = 0; i < 8; ++i) mask |= uint32_t(uniforms[i] >= bound) << i;
    return mask;
#endif
}

struct Best {
    double total;
    int64_t id;

    void meet(const Row& row, uint64_t noise_key, int64_t id_met) {
        if (id_met >= row.count) return;
        const float score = row.score(id_met);
        if (!row.keeps(score, key_of(score, id_met))) return;
        const double met = (double(score) - double(row.peak)) + gumbel(uniform_bits(noise_key, id_met));
        if (met > total || (met == total && id_met < id)) *this = {met, id_met};
    }
};

// Lane i beats the best so far only if -log(u) <= e^(score - peak - best), and so only if 1 - u is; for the greatest
// score of its block that is one exponential for 64 lanes, and few are left for whom it takes logarithms.
int64_t draw_from(const Row& row, uint64_t noise_key) {
    int64_t first = 0;
    while (row.maxima[first] != row.peak) ++first;
    Best best = {double(-kInfinity), row.count};
    for (int64_t i = 0; i < kBlock; ++i) {
        if (first * kBlock + i < row.count && row.score(first * kBlock + i) == row.peak) {
            best.meet(row, noise_key, first * kBlock + i);
            break;
        }
    }
    u64x8 counters;
    for (int64_t i = 0; i < 8; ++i) counters[i] = uint64_t(i + 1) * kGolden;
    for (int64_t b = 0; b < row.num_blocks; ++b) {
        if (!row.may_keep(b)) continue;
        const double reach = kSlack * double(exp(float(double(row.maxima[b]) - double(row.peak) - best.total)));
        if (reach < 0x1p-54) continue;  // 1 - u is at least 2^-53
        const double bound = reach < 1.0 ? (1.0 - reach) * 0x1p53 : 0.0;
        const uint64_t least = bound > 2.0 ? uint64_t(bound) - 2 : 0;  // one for the rounding, one for the last bit
        for (int64_t i = 0; i < kBlock; i += 8) {
            const u64x8 uniforms = mix(counters + (noise_key + uint64_t(b * kBlock + i) * kGolden)) >> 11;
            for (uint32_t mask = reaching(uniforms, least); mask; mask &= mask - 1) {
                best.meet(row, noise_key, b * kBlock + i + __builtin_ctz(mask));
            }
        }
    }
    return best.id;
}

void describe_row(const DescribeArgs& a, Row& row, int64_t r) {
    const int64_t width = a.width + 1, chosen = a.token_ids[r];
    float* values = a.values + r * width;
    int64_t* ids = a.ids + r * width;
    ids[0] = chosen;
    a.ranks[r] = 0;
    if (!row.begin(a.logits + r * a.num_cols, 1.0f, -kInfinity)) {
        for (int64_t n = 0; n < width; ++n) values[n] = __builtin_nanf("");
        for (int64_t n = 1; n < width; ++n) ids[n] = n - 1;
        return;
    }
    const double total = double(row.whole_mass()) * 0x1p-40;
    const double normaliser = double(row.peak) + log_in_steps(total);
    values[0] = float(double(row.scores[chosen]) - normaliser);
    for (int64_t b = 0; b < row.num_blocks; ++b) {
        if (row.maxima[b] < row.scores[chosen]) continue;
        const int64_t length = b + 1 < row.num_blocks ? kBlock : row.count - b * kBlock;
        for (int64_t i = 0; i < length; ++i) a.ranks[r] += row.scores[b * kBlock + i] >= row.scores[chosen];
    }
    const int64_t num_top = a.num_top[r] < a.width ? a.num_top[r] : a.width;
    if (num_top == 0) return;
    Heap heap = row.collect(row.reached_by(num_top), kAnyBin);
    int64_t n = 1;
    for (; n <= num_top && heap.size > 0; ++n) {
        const uint64_t key = heap.pop();
        ids[n] = id_of(key);
        values[n] = float(double(score_of(key)) - normaliser);
    }
    for (int64_t id = 0; n <= num_top; ++id) {  // the forbidden ones
        if (row.scores[id] != -kInfinity) continue;
        ids[n] = id;
        values[n++] = -kInfinity;
    }
}

// Each member's own part of the team's memory.
void place(Row& row, int64_t count, const Team& team) {
    const int64_t num_bytes = Row::num_bytes(count);
    row.place(team.memory(num_bytes * team.size()) + num_bytes * team.thread(), count);
}

}  // namespace

void draw(const DrawArgs& a, const Team& team) {
    Row row;
    place(row, a.num_cols, team);
    for (int64_t r = team.take(); r < a.num_rows; r = team.take()) {
        a.token_ids[r] = -1;
        if (!row.begin(a.scores + a.rows[r] * a.num_cols, a.temperature[r], a.log_min_p[r])) continue;
        keep_top_k(row, a.top_k[r]);
        keep_top_p(row, a.top_p[r]);
        a.token_ids[r] = draw_from(row, uint64_t(a.keys[r]));
    }
}

void describe(const DescribeArgs& a, const Team& team) {
    Row row;
    place(row, a.num_cols, team);
    for (int64_t r = team.take(); r < a.num_rows; r = team.take()) describe_row(a, row, r);
}

}  // namespace MOTET_ISA
}  // namespace motet
