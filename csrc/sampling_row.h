// One row of scores for sampling: blocks of 64 with their maxima, so that what looks for the best few reads little
// else; masses of the softmax as integers; the noise. Defined by motet/sampling (masses.py, ranking.py, noise.py), bit
// for bit: every float operation is rounded by itself, and sums of integers do not depend on their order.
#pragma once

#include "vec.h"

namespace motet {
namespace MOTET_ISA {

typedef uint64_t u64x8 __attribute__((vector_size(64)));
typedef double f64x8 __attribute__((vector_size(64)));

constexpr int64_t kBlock = 64;
constexpr float kInfinity = __builtin_inff();
constexpr float kLeastGap = -29.0f;  // its mass rounds to 0
constexpr float kBinsPerUnit = 32.0f;
constexpr int64_t kNumBins = 29 * 32 + 1;
constexpr int64_t kAnyBin = -1;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

MOTET_INLINE bool is_finite(float x) { return x - x == 0.0f; }

// Keys in the order of motet/sampling/ranking.py: the greater score first, then the lower id. No score gives 0.
MOTET_INLINE uint64_t key_of(float score, int64_t id) {
    const uint32_t bits = bit_cast<uint32_t>(score + 0.0f);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ascending) << 32 | uint32_t(~uint32_t(id));
}

MOTET_INLINE int64_t id_of(uint64_t key) { return int64_t(uint32_t(~uint32_t(key))); }

MOTET_INLINE float score_of(uint64_t key) {
    const uint32_t ascending = uint32_t(key >> 32);
    return bit_cast<float>(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}

// A heap whose first key is the greatest.
struct Heap {
    uint64_t* keys;
    int64_t size;

    void sift_down(int64_t at) {
        const uint64_t key = keys[at];
        for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
            if (child + 1 < size && keys[child + 1] > keys[child]) ++child;
            if (keys[child] < key) break;
            keys[at] = keys[child];
            at = child;
        }
        keys[at] = key;
    }

    void build() {
        for (int64_t at = size / 2; at-- > 0;) sift_down(at);
    }

    uint64_t pop() {
        const uint64_t best = keys[0];
        keys[0] = keys[--size];
        if (size > 0) sift_down(0);
        return best;
    }
};

// e^x for kLeastGap <= x <= 0.
MOTET_INLINE f32x16 exp_in_steps(const f32x16& x) {
    const f32x16 rounder = broadcast(0x1.8p23f);
    const f32x16 n = (x * 0x1.715476p0f + rounder) - rounder;
    const f32x16 r = (x - n * 0.693359375f) - n * -0x1.bd0106p-13f;
    f32x16 p = broadcast(0x1.6a1a72p-10f);
    p = p * r + broadcast(0x1.123fc6p-7f);
    p = p * r + broadcast(0x1.555916p-5f);
    p = p * r + broadcast(0x1.55548ap-3f);
    p = p * r + broadcast(0x1.fffffcp-2f);
    p = (p * r + broadcast(1.0f)) * r + broadcast(1.0f);
    f32x16 result;
    for (int64_t i = 0; i < kParts; ++i) {
        const u32_part power = (bit_cast<u32_part>(n.part[i] + 0x1.8p23f) + 127u) << 23;
        result.part[i] = p.part[i] * bit_cast<f32_part>(power);
    }
    return result;
}

MOTET_INLINE f64x8 widen(const f32x16& v, int64_t half) {
#if defined(__AVX512F__)
    const __m256 part = half ? _mm512_extractf32x8_ps((__m512)v.part[0], 1) : _mm512_castps512_ps256((__m512)v.part[0]);
    return (f64x8)_mm512_cvtps_pd(part);
#else
    float lanes[kLanes];
    store(lanes, v);
    f64x8 wide;
    for (int64_t i = 0; i < 8; ++i) wide[i] = double(lanes[8 * half + i]);
    return wide;
#endif
}

// Adds the masses of eight exponentials, in units of 2^-40: beside 1.5 * 2^12 a double has no finer bits.
MOTET_INLINE u64x8 add_masses(const u64x8& sums, const f32x16& exponentials, int64_t half) {
    return sums + (bit_cast<u64x8>(widen(exponentials, half) + 0x1.8p12) - 0x40b8000000000000u);
}

MOTET_INLINE u64x8 add_masses(const u64x8& sums, const f32x16& exponentials) {
    return add_masses(add_masses(sums, exponentials, 0), exponentials, 1);
}

// A bit for each lane.
MOTET_INLINE uint32_t mask_of(const u32_part* is_set) {
    uint32_t mask = 0;
    for (int64_t p = 0; p < kParts; ++p) {
#if defined(__AVX512F__)
        mask |= uint32_t(_mm512_movepi32_mask((__m512i)is_set[p]));
#elif defined(__AVX2__)
        mask |= uint32_t(_mm256_movemask_ps((__m256)is_set[p])) << (p * kWidth);
#else
        for (int64_t j = 0; j < kWidth; ++j) mask |= (is_set[p][j] & 1u) << (p * kWidth + j);
#endif
    }
    return mask;
}

MOTET_INLINE int64_t sum(const u64x8& v) {
    uint64_t total = 0;
    for (int64_t i = 0; i < 8; ++i) total += v[i];
    return int64_t(total);
}

// Natural logarithm of a positive, normal number.
MOTET_INLINE double log_in_steps(double x) {
    const uint64_t bits = bit_cast<uint64_t>(x);
    double exponent = double(int64_t(bits >> 52) - 1022);
    double mantissa = bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3fe0000000000000u);
    if (mantissa < 0x1.6a09e667f3bcdp-1) {
        mantissa *= 2.0;
        exponent -= 1.0;
    }
    const double s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s;
    double series = 1.0 / 21.0;
    for (int64_t k = 9; k >= 0; --k) series = series * square + 1.0 / double(2 * k + 1);
    return exponent * 0x1.62e42fefa39efp-1 + (2.0 * s) * series;
}

template <class Bits>
MOTET_INLINE Bits mix(Bits z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// u * 2^53, less its last bit, which is 1.
MOTET_INLINE uint64_t uniform_bits(uint64_t key, int64_t lane) { return mix(key + uint64_t(lane + 1) * kGolden) >> 11; }

MOTET_INLINE double gumbel(uint64_t uniform) {
    return -log_in_steps(-log_in_steps(double(uniform | 1u) * 0x1p-53));
}

// One row, scaled by a temperature: scores[i] / temperature. What is kept of it narrows step by step.
struct Row {
    const float* scores;
    int64_t count;
    float temperature;
    int64_t num_blocks;
    float* maxima;   // [num_blocks]
    uint64_t* keys;  // [num_blocks * kBlock]
    float last[kBlock];  // the last block, filled up with -inf

    float peak;
    float least_gap;         // kept: score - peak is at least this,
    uint64_t least_key = 0;  // and the key too

    float score(int64_t id) const { return scores[id] / temperature; }
    const float* block(int64_t b) const { return b + 1 < num_blocks ? scores + b * kBlock : last; }
    bool keeps(float score, uint64_t key) const { return score - peak >= least_gap && key >= least_key; }
    // Whether the block may have something that is kept; its maximum might have the lowest id that there is.
    bool may_keep(int64_t b) const { return keeps(maxima[b], key_of(maxima[b], 0)); }

    static int64_t num_bytes(int64_t count) {
        const int64_t num_blocks = (count + kBlock - 1) / kBlock;
        return num_blocks * kBlock * 8 + (num_blocks * 4 + 63) / 64 * 64;
    }

    void place(char* memory, int64_t length) {
        count = length;
        num_blocks = (length + kBlock - 1) / kBlock;
        keys = reinterpret_cast<uint64_t*>(memory);
        maxima = reinterpret_cast<float*>(memory + num_blocks * kBlock * 8);
    }

    // False where the row has no finite maximum.
    bool begin(const float* row, float divisor, float gap) {
        scores = row;
        temperature = divisor;
        least_gap = gap;
        least_key = 0;
        for (int64_t i = 0; i < kBlock; ++i) {
            const int64_t id = (num_blocks - 1) * kBlock + i;
            last[i] = id < count ? row[id] : -kInfinity;
        }
        f32x16 best = broadcast(-kInfinity);
        u32_part has_nan = {};
        for (int64_t b = 0; b < num_blocks; ++b) {
            const float* x = block(b);
            f32x16 four[4];
            for (int64_t v = 0; v < 4; ++v) {
                four[v] = load(x + v * kLanes);
                for (int64_t p = 0; p < kParts; ++p) has_nan |= bit_cast<u32_part>(four[v].part[p] != four[v].part[p]);
            }
            const f32x16 both = max(max(four[0], four[1]), max(four[2], four[3]));
            maxima[b] = largest(both) / temperature;
            best = max(best, both);
        }
        for (int64_t j = 0; j < kWidth; ++j) {
            if (has_nan[j]) return false;
        }
        peak = largest(best) / temperature;
        return is_finite(peak);
    }

    // Puts what is kept, not -inf, reaches `floor` and is in the bin into a heap.
    Heap collect(float floor, int64_t bin) const {
        Heap heap{keys, 0};
        const f32x16 top = broadcast(peak), divisor = broadcast(temperature);
        const float first = float(bin), end = float(bin + 1);
        for (int64_t b = 0; b < num_blocks; ++b) {
            if (maxima[b] < floor || !may_keep(b)) continue;
            if (bin != kAnyBin && (maxima[b] - peak) * -kBinsPerUnit >= end) continue;
            const float* x = block(b);
            for (int64_t i = 0; i < kBlock; i += kLanes) {
                const f32x16 value = load(x + i) / divisor, place = (value - top) * -kBinsPerUnit;
                u32_part is_in[kParts];
                for (int64_t p = 0; p < kParts; ++p) {
                    is_in[p] = bit_cast<u32_part>(value.part[p] >= floor);
                    is_in[p] &= bit_cast<u32_part>(value.part[p] > -kInfinity);
                    if (bin == kAnyBin) continue;
                    is_in[p] &= bit_cast<u32_part>(place.part[p] >= first) & bit_cast<u32_part>(place.part[p] < end);
                }
                for (uint32_t mask = mask_of(is_in); mask; mask &= mask - 1) {
                    const int64_t id = b * kBlock + i + __builtin_ctz(mask);
                    const uint64_t key = key_of(score(id), id);
                    if (keeps(score(id), key)) keys[heap.size++] = key;
                }
            }
        }
        heap.build();
        return heap;
    }

    // A score that at least k of those that are kept reach, if so many blocks have one: the k-th largest maximum.
    float reached_by(int64_t k) const {
        Heap heap{keys, 0};
        for (int64_t b = 0; b < num_blocks; ++b) {
            if (may_keep(b)) keys[heap.size++] = key_of(maxima[b], b);
        }
        if (heap.size < k) return -kInfinity;
        heap.build();
        for (int64_t n = 1; n < k; ++n) heap.pop();
        return score_of(heap.pop());
    }

    // e^(score - peak) of sixteen lanes of a block, 0 where they are below `floor` or `least_gap`.
    f32x16 exponentials(const float* x, float floor, f32x16& gap) const {
        const f32x16 value = load(x) / broadcast(temperature);
        gap = value - broadcast(peak);
        u32_part is_in[kParts];
        for (int64_t p = 0; p < kParts; ++p) {
            is_in[p] = bit_cast<u32_part>(value.part[p] >= floor) & bit_cast<u32_part>(gap.part[p] >= least_gap);
        }
        gap = max(gap, broadcast(kLeastGap));
        f32x16 e = exp_in_steps(gap);
        for (int64_t p = 0; p < kParts; ++p) {
            e.part[p] = bit_cast<f32_part>(bit_cast<u32_part>(e.part[p]) & is_in[p]);
        }
        return e;
    }

    // The mass of all that the row has.
    int64_t whole_mass() const {
        u64x8 sums = {};
        f32x16 gap;
        for (int64_t b = 0; b < num_blocks; ++b) {
            if (maxima[b] - peak < kLeastGap) continue;
            for (int64_t i = 0; i < kBlock; i += kLanes) {
                sums = add_masses(sums, exponentials(block(b) + i, -kInfinity, gap));
            }
        }
        return sum(sums);
    }

    // The masses of those that are kept, by how far below the peak they are. (As yet that is a matter of scores.)
    void fill_bins(int64_t* bins) const {
        for (int64_t n = 0; n < kNumBins; ++n) bins[n] = 0;
        const float floor = least_key ? score_of(least_key) : -kInfinity;
        uint64_t lane_masses[kLanes];
        float places[kLanes];
        f32x16 gap;
        for (int64_t b = 0; b < num_blocks; ++b) {
            if (maxima[b] - peak < kLeastGap || !may_keep(b)) continue;
            const float* x = block(b);
            for (int64_t i = 0; i < kBlock; i += kLanes) {
                const f32x16 e = exponentials(x + i, floor, gap);
                for (int64_t half = 0; half < 2; ++half) {
                    const u64x8 eight = add_masses(u64x8{}, e, half);
                    std::memcpy(lane_masses + 8 * half, &eight, sizeof(eight));
                }
                store(places, gap * -kBinsPerUnit);
                for (int64_t j = 0; j < kLanes; ++j) bins[int32_t(places[j])] += int64_t(lane_masses[j]);
            }
        }
    }

    int64_t mass_of(float score) const {
        const float gap = score - peak;
        f32x16 one = {};
        one.part[0][0] = exp_in_steps(broadcast(gap > kLeastGap ? gap : kLeastGap)).part[0][0];
        return sum(add_masses(u64x8{}, one));
    }
};

}  // namespace MOTET_ISA
}  // namespace motet
