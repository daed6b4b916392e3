// The softmax of a few queries over the keys of one KV head: what a task of csrc/attention.cpp does.
#pragma once

#include "attention_loads.h"
#include "kernels.h"
#include "vec.h"
#include "vec_math.h"

namespace motet {
namespace MOTET_ISA {
namespace {

inline int64_t first_visible(const PagedAttentionArgs& a, int64_t position) {
    return a.window > 0 ? greater(0, position - a.window + 1) : 0;
}

// Calls visit(position, vector) for positions [first, end) of a row; vector counts the vectors of a cache.
template <class Visit>
MOTET_INLINE void for_each_key(const PagedAttentionArgs& args, int64_t row, int64_t kv_head, int64_t first, int64_t end,
                               const Visit& visit) {
    const int32_t* table = args.block_table + row * args.table_stride;
    int64_t block = first / args.block_size, offset = first % args.block_size;
    for (int64_t position = first; position < end; ++position, ++offset) {
        if (offset == args.block_size) {
            ++block;
            offset = 0;
        }
        const int64_t slot = table[block] * args.block_size + offset;
        visit(position, slot * args.num_kv_heads + kv_head);
    }
}

// Asks for K and V of positions [first, end) of a row, in order, before they are used.
class Prefetch {
public:
    Prefetch(const PagedAttentionArgs& args, int64_t row, int64_t kv_head, int64_t first, int64_t end)
        : args_(&args), row_(row), kv_head_(kv_head), position_(first), end_(end) {}

    // (Always inline: GCC drops calls of a function that does nothing but prefetch.)
    __attribute__((always_inline)) void reach(int64_t position) {
        const int64_t stop = smaller(position, end_), key_bytes = args_->head_size * num_bytes(args_->cache_dtype);
        const char* k_cache = static_cast<const char*>(args_->k_cache);
        const char* v_cache = static_cast<const char*>(args_->v_cache);
        const auto ask = [&](int64_t, int64_t vector) __attribute__((always_inline)) {
            const int64_t start = vector * key_bytes;
            for (int64_t byte = start; byte < start + key_bytes; byte += 64) {
                __builtin_prefetch(k_cache + byte, 0, kSecondLevel);
                __builtin_prefetch(v_cache + byte, 0, kSecondLevel);
            }
        };
        for_each_key(*args_, row_, kv_head_, position_, stop, ask);
        position_ = greater(position_, stop);
    }

    __attribute__((always_inline)) void advance(int64_t num_keys) { reach(position_ + num_keys); }

private:
    const PagedAttentionArgs* args_;
    int64_t row_;
    int64_t kv_head_;
    int64_t position_;
    int64_t end_;
};

struct Tile {
    int64_t row;
    int64_t kv_head;
    int64_t first_head;  // of the query heads
    int64_t num_heads;
    int64_t first_query;  // of the row
    int64_t num_queries;

    int64_t num_rows() const { return num_heads * num_queries; }

    int64_t position(const PagedAttentionArgs& a) const { return a.rows[row] + first_query; }

    // Positions of the keys that some query of the tile sees.
    int64_t first_key(const PagedAttentionArgs& a) const { return first_visible(a, position(a)); }
    int64_t end_key(const PagedAttentionArgs& a) const { return position(a) + num_queries; }
};

// Softmax under way: per row the maximum, the sum of weights, and the weighted sum of values.
struct Partial {
    float* max;     // [num_rows]
    float* sum;     // [num_rows]
    float* values;  // [num_rows, stride]
};

// Adds a later split to the total. A split of which the row sees nothing has sum 0.
void fold(const Partial& total, const Partial& split, int64_t num_rows, int64_t stride) {
    for (int64_t r = 0; r < num_rows; ++r) {
        if (split.sum[r] == 0.0f) continue;
        const float max = total.max[r] > split.max[r] ? total.max[r] : split.max[r];
        const float old_factor = exp(total.max[r] - max), factor = exp(split.max[r] - max);
        total.max[r] = max;
        total.sum[r] = total.sum[r] * old_factor + split.sum[r] * factor;
        const f32x16 factors = broadcast(factor);
        for (int64_t i = r * stride; i < (r + 1) * stride; i += kLanes) {
            store(total.values + i, fma(load(split.values + i), factors, load(total.values + i) * old_factor));
        }
    }
}

void clear(const Partial& partial, int64_t num_rows, int64_t stride) {
    for (int64_t r = 0; r < num_rows; ++r) {
        partial.max[r] = -kInfinity;
        partial.sum[r] = 0.0f;
    }
    std::memset(partial.values, 0, size_t(num_rows * stride) * sizeof(float));
}

// Memory of one thread. stride: head_size rounded up to whole vectors.
struct Scratch {
    float* queries;  // [kMaxRows, stride]
    float* keys;     // [stride, kGroup]
    float* values;   // [kGroup, stride]
    Partial split;
    Partial total;

    static int64_t num_floats(int64_t stride) { return stride * (3 * kMaxRows + 2 * kGroup) + 4 * kMaxRows; }

    Scratch(float* memory, int64_t stride) {
        queries = memory;
        keys = queries + kMaxRows * stride;
        values = keys + kGroup * stride;
        split.values = values + kGroup * stride;
        total.values = split.values + kMaxRows * stride;
        split.max = total.values + kMaxRows * stride;
        split.sum = split.max + kMaxRows;
        total.max = split.sum + kMaxRows;
        total.sum = total.max + kMaxRows;
    }
};

MOTET_INLINE f32x16 lane_indices() {
    alignas(64) static const float indices[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(indices);
}

// Lanes first to last - 1 of v, -inf in the others.
MOTET_INLINE f32x16 keep_lanes(f32x16 v, int64_t first, int64_t last) {
    const f32x16 lanes = lane_indices();
    const f32_part nothing = f32_part{} - kInfinity;
    for (int64_t i = 0; i < kParts; ++i) {
        v.part[i] = lanes.part[i] < float(first) ? nothing : v.part[i];
        v.part[i] = lanes.part[i] < float(last) ? v.part[i] : nothing;
    }
    return v;
}

class TileWalk {
public:
    TileWalk(const PagedAttentionArgs& args, const Tile& tile, const Scratch& scratch)
        : args_(args), tile_(tile), scratch_(scratch), num_rows_(tile.num_rows()),
          stride_(round_up(args.head_size, kLanes)), position_(tile.position(args)),
          token_(args.rows[2 * args.num_rows + tile.row] + tile.first_query),
          of_pairs_(kHasPairs && args.dtype == DType::bf16 && args.cache_dtype == CacheDType::bf16) {}

    void load_queries() {
        if (of_pairs_) return copy_queries();
        switch (args_.dtype) {
            case DType::f32: return load_queries_as<float>();
            case DType::bf16: return load_queries_as<bf16>();
            case DType::f16: return load_queries_as<f16>();
        }
    }

    // own: of this tile's keys; next: of what the thread attends to after them, so that memory is never idle.
    void attend_split(int64_t split, const Partial& out, Prefetch& own, Prefetch& next) {
        clear(out, num_rows_, stride_);
        std::memset(sum_lanes_, 0, size_t(num_rows_) * sizeof(sum_lanes_[0]));
        const int64_t end = smaller(tile_.end_key(args_), (split + 1) * kSplit);
        const int64_t first = greater(tile_.first_key(args_), split * kSplit);
        for (int64_t start = first / kGroup * kGroup; start < end; start += kGroup) {
            own.reach(start + kAhead + kGroup);
            next.advance(kGroup);
            find_visible(start);
            load_group(start, greater(first, start), smaller(end, start + kGroup));
            score(greater(first - start, 0) / kLanes, round_up(smaller(end - start, kGroup), kLanes) / kLanes);
            weigh(start, out);
            mix(out);
        }
        for (int64_t r = 0; r < num_rows_; ++r) out.sum[r] = motet::MOTET_ISA::sum(load(sum_lanes_[r]));
    }

    // Ends the softmax of a total and writes the tile's output.
    void finish(const Partial& total) const {
        switch (args_.dtype) {
            case DType::f32: return finish_as<float>(total);
            case DType::bf16: return finish_as<bf16>(total);
            case DType::f16: return finish_as<f16>(total);
        }
    }

private:
    template <class T>
    void load_queries_as() {
        const T* q = static_cast<const T*>(args_.q);
        for (int64_t r = 0; r < num_rows_; ++r) {
            const int64_t token = token_ + r / tile_.num_heads, head = tile_.first_head + r % tile_.num_heads;
            convert(scratch_.queries + r * stride_, q + token * args_.q_strides.token + head * args_.q_strides.head,
                    args_.head_size);
        }
    }

    void copy_queries() {
        const bf16* q = static_cast<const bf16*>(args_.q);
        for (int64_t r = 0; r < num_rows_; ++r) {
            const int64_t token = token_ + r / tile_.num_heads, head = tile_.first_head + r % tile_.num_heads;
            float* row = scratch_.queries + r * stride_;
            row[args_.head_size / 2] = 0.0f;  // a last dimension without a neighbour
            std::memcpy(row, q + token * args_.q_strides.token + head * args_.q_strides.head,
                        size_t(args_.head_size) * sizeof(bf16));
        }
    }

    void find_visible(int64_t start) {
        for (int64_t query = 0, r = 0; query < tile_.num_queries; ++query) {
            const int64_t position = position_ + query;
            const int64_t first = clamp(first_visible(args_, position) - start, 0, kGroup);
            const int64_t last = clamp(position + 1 - start, 0, kGroup);
            for (const int64_t end = r + tile_.num_heads; r < end; ++r) {
                first_[r] = first;
                last_[r] = last;
            }
        }
    }

    bool sees(int64_t r) const { return first_[r] < last_[r]; }

    void load_group(int64_t start, int64_t first, int64_t end) {
        if (of_pairs_) return load_group_as_pairs(start, first, end);
        switch (args_.cache_dtype) {
            case CacheDType::f32: return load_group_as<float>(start, first, end);
            case CacheDType::bf16: return load_group_as<bf16>(start, first, end);
            case CacheDType::f16: return load_group_as<f16>(start, first, end);
            case CacheDType::int8: return load_group_as<i8>(start, first, end);
            case CacheDType::f8: return load_group_as<f8>(start, first, end);
        }
    }

    // K, transposed, and V of positions [first, end) of the group that begins at `start`.
    template <class T>
    void load_group_as(int64_t start, int64_t first, int64_t end) {
        const T* k_cache = static_cast<const T*>(args_.k_cache);
        const T* v_cache = static_cast<const T*>(args_.v_cache);
        const T* keys[kGroup] = {};
        float scales[kGroup] = {};
        for_each_key(args_, tile_.row, tile_.kv_head, first, end, [&](int64_t position, int64_t vector) {
            const int64_t index = position - start;
            keys[index] = k_cache + vector * args_.head_size;
            float* values = scratch_.values + index * stride_;
            if constexpr (kIsScaled<T>) {
                scales[index] = args_.k_scale[vector];
                load_scaled(values, v_cache + vector * args_.head_size, args_.head_size, args_.v_scale[vector]);
            } else {
                convert(values, v_cache + vector * args_.head_size, args_.head_size);
            }
        });
        load_keys(scratch_.keys, keys, scales, args_.head_size);
    }

    // Values go in pairs of an even position and the next one.
    void load_group_as_pairs(int64_t start, int64_t first, int64_t end) {
        const bf16* k_cache = static_cast<const bf16*>(args_.k_cache);
        const bf16* v_cache = static_cast<const bf16*>(args_.v_cache);
        const bf16* keys[kGroup] = {};
        const bf16* values[kGroup] = {};
        for_each_key(args_, tile_.row, tile_.kv_head, first, end, [&](int64_t position, int64_t vector) {
            keys[position - start] = k_cache + vector * args_.head_size;
            values[position - start] = v_cache + vector * args_.head_size;
        });
        for (int64_t i = 0; i < kGroup; i += 2) {
            if (!values[i] && !values[i + 1]) continue;
            load_value_pair(scratch_.values + i / 2 * stride_, values[i], values[i + 1], args_.head_size);
        }
        load_keys_as_pairs(scratch_.keys, keys, args_.head_size);
    }

    // q k' of the group's vectors [first, end).
    void score(int64_t first, int64_t end) {
        for (int64_t r = 0; r < num_rows_; r += kBlockRows) {
            const int64_t num_rows = smaller(kBlockRows, num_rows_ - r);
            if (!sees(r) && !sees(r + num_rows - 1)) {
                bool is_seen = false;
                for (int64_t i = 1; i + 1 < num_rows; ++i) is_seen |= sees(r + i);
                if (!is_seen) continue;
            }
            const int64_t num_steps = of_pairs_ ? (args_.head_size + 1) / 2 : args_.head_size;
            accumulate(of_pairs_, num_rows, end - first, scores_[r] + first * kLanes, kGroup, nullptr,
                       {scratch_.queries + r * stride_, stride_}, {scratch_.keys + first * kLanes, kGroup}, 0,
                       num_steps);
        }
    }

    // Scores to weights, exp(score - maximum so far), their sums by lane, and factors_ for what was summed before.
    void weigh(int64_t start, const Partial& out) {
        alignas(64) float max[kMaxRows];
        for (int64_t r = 0; r < num_rows_; ++r) {
            max[r] = out.max[r];
            if (!sees(r)) continue;
            f32x16 best = broadcast(-kInfinity);
            for (int64_t v = 0; v < kGroupVectors; ++v) {
                float* scores = scores_[r] + v * kLanes;
                const f32x16 s = final_scores(load(scores), r, start + v * kLanes);
                const bool sees_all = first_[r] <= v * kLanes && last_[r] >= (v + 1) * kLanes;
                const f32x16 visible = sees_all ? s : keep_lanes(s, first_[r] - v * kLanes, last_[r] - v * kLanes);
                store(scores, visible);
                best = motet::MOTET_ISA::max(best, visible);
            }
            const float group_max = largest(best);
            max[r] = out.max[r] > group_max ? out.max[r] : group_max;
        }
        for (int64_t r = 0; r < num_rows_; r += kLanes) {
            const int64_t rest = smaller(kLanes, num_rows_ - r);
            store(factors_ + r, exp(load_first(out.max + r, rest) - load_first(max + r, rest)));
        }
        for (int64_t r = 0; r < num_rows_; ++r) {
            if (!sees(r)) continue;
            out.max[r] = max[r];
            f32x16 sum = {};
            for (int64_t v = 0; v < kGroupVectors; ++v) {
                float* scores = scores_[r] + v * kLanes;
                const f32x16 weights = exp(load(scores) - broadcast(max[r]));
                store(scores, weights);
                sum = sum + weights;
            }
            store(sum_lanes_[r], fma(load(sum_lanes_[r]), broadcast(factors_[r]), sum));
            if (of_pairs_) round_weights(scores_[r]);
        }
    }

    // To bfloat16, so that neighbours share a word.
    static void round_weights(float* weights) {
        bf16 rounded[kGroup];
        convert(rounded, weights, kGroup);
        std::memcpy(weights, rounded, sizeof(rounded));
    }

    f32x16 final_scores(f32x16 scores, int64_t r, int64_t first_position) const {
        scores = scores * args_.scale;
        if (args_.soft_cap > 0.0f) scores = tanh(scores / broadcast(args_.soft_cap)) * args_.soft_cap;
        if (args_.alibi_slopes) {
            const float slope = args_.alibi_slopes[tile_.first_head + r % tile_.num_heads];
            const float distance = float(first_position - (position_ + r / tile_.num_heads));
            scores = fma(broadcast(slope), broadcast(distance) + lane_indices(), scores);
        }
        return scores;
    }

    // Adds weights times values. Rows that see the same keys go together.
    void mix(const Partial& out) {
        for (int64_t r = 0; r < num_rows_;) {
            int64_t run = 1;
            while (run < kBlockRows && r + run < num_rows_ && first_[r] == first_[r + run] &&
                   last_[r] == last_[r + run]) {
                ++run;
            }
            if (sees(r)) {
                // The other key of a pair has weight 0 where the row does not see it.
                const int64_t begin = of_pairs_ ? first_[r] / 2 : first_[r];
                const int64_t end = of_pairs_ ? (last_[r] + 1) / 2 : last_[r];
                accumulate(of_pairs_, run, stride_ / kLanes, out.values + r * stride_, stride_, factors_ + r,
                           {scores_[r], kGroup}, {scratch_.values, stride_}, begin, end);
            }
            r += run;
        }
    }

    template <class T>
    void finish_as(const Partial& total) const {
        T* out = static_cast<T*>(args_.out);
        for (int64_t r = 0; r < num_rows_; ++r) {
            const int64_t token = token_ + r / tile_.num_heads, head = tile_.first_head + r % tile_.num_heads;
            float* values = total.values + r * stride_;
            float factor = 1.0f, sum = total.sum[r];
            if (args_.sinks) {
                const float sink = args_.sinks[head];
                const float max = total.max[r] > sink ? total.max[r] : sink;
                factor = exp(total.max[r] - max);
                sum = sum * factor + exp(sink - max);
            }
            factor = factor / sum;
            for (int64_t i = 0; i < stride_; i += kLanes) store(values + i, load(values + i) * factor);
            convert(out + (token * args_.num_heads + head) * args_.head_size, values, args_.head_size);
        }
    }

    const PagedAttentionArgs& args_;
    const Tile& tile_;
    const Scratch& scratch_;
    const int64_t num_rows_;
    const int64_t stride_;
    const int64_t position_;  // of the first query
    const int64_t token_;     // its index in q
    const bool of_pairs_;     // products of bfloat16, in the cache's and the queries' own precision
    int64_t first_[kMaxRows];  // the row sees keys [first, last) of the group
    int64_t last_[kMaxRows];
    alignas(64) float scores_[kMaxRows][kGroup];
    alignas(64) float sum_lanes_[kMaxRows][kLanes];  // sums of weights of the keys with position % 16 = lane
    alignas(64) float factors_[kMaxRows];
};

}  // namespace
}  // namespace MOTET_ISA
}  // namespace motet
