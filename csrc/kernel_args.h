// The arguments of the kernels.
//
// Buffers are dense and row-major; the caller keeps them alive. A row's result depends on nothing but that row:
// not on the number of rows or threads. Beside each struct of arguments, `fields` visits what may change from step to
// step in a recorded program: pointers to the step's buffers, and counts. Weights, caches and widths stay.
#pragma once

#include <cstddef>
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
};

template <class Visit>
void fields(RmsNormArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.num_rows);
}

struct LayerNormArgs {
    void* out;            // [num_rows, num_cols] of dtype; may be x
    const void* x;        // [num_rows, num_cols] of dtype
    const float* weight;  // [num_cols]
    const float* bias;    // [num_cols], or null
    int64_t num_rows;
    int64_t num_cols;
    float eps;
    DType dtype;
};

template <class Visit>
void fields(LayerNormArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.num_rows);
}

constexpr int64_t kLinearBlock = 64;  // outputs that packed weights keep side by side

// Where a matrix kernel writes, and what it adds first: columns [first_column, first_column + its outputs) of rows of
// `stride` elements.
struct LinearOutput {
    void* out;             // [num_rows, stride] of dtype, or of float
    const void* bias;      // [stride] of dtype, or null
    const void* residual;  // [num_rows, stride] of dtype, or null
    int64_t stride;
    int64_t first_column;
    DType dtype;
    bool wants_f32;  // out is float
};

struct LinearArgs {
    LinearOutput output;
    const void* x;       // [num_rows, num_inputs] of the output's dtype
    const void* weight;  // packed, of weight_dtype
    int64_t num_rows;
    int64_t num_outputs;
    int64_t num_inputs;
    DType weight_dtype;
};

template <class Visit>
void fields(LinearArgs& a, const Visit& visit) {
    visit(a.output.out, a.x, a.output.residual, a.num_rows);
}

struct UnpackRowsArgs {
    void* out;            // [num_rows, num_inputs] of dtype
    const void* weight;   // packed, of weight_dtype
    const int64_t* rows;  // [num_rows], which outputs' weights
    int64_t num_rows;
    int64_t num_inputs;
    float scale;  // of dtype: multiplies the rounded weights, and the product is rounded again; 1: nothing
    DType dtype;
    DType weight_dtype;
};

template <class Visit>
void fields(UnpackRowsArgs& a, const Visit& visit) {
    visit(a.out, a.rows, a.num_rows);
}

constexpr int64_t kQuantBlock = 32;  // outputs that packed quantised weights keep side by side

// GGUF's numbers; the last two are Motet's own: a scale for each output, and groups with a scale and a minimum.
enum class QuantKind : int {
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    int8 = 100,
    int4 = 101
};
constexpr QuantKind kQuantKinds[] = {QuantKind::q4_0, QuantKind::q4_1, QuantKind::q5_0, QuantKind::q5_1,
                                     QuantKind::q8_0, QuantKind::q4_k, QuantKind::q5_k, QuantKind::q6_k,
                                     QuantKind::int8, QuantKind::int4};

// What follows the int8 activations of a group. A row of quantised activations is its groups' records, one after the
// other: the integers, padded with zeros to a multiple of 32, and this.
struct GroupMeta {
    float scale;
    float scaled_sum;  // scale * sum of the integers
    int32_t negative_sum;        // minus the sum of the integers
    int32_t negative_halves[2];  // the same of the first sixteen, and of the rest
};

struct QuantizeRowsArgs {
    void* out;      // [num_rows, records of a row]
    const void* x;  // [num_rows, num_cols] of dtype
    int64_t num_rows;
    int64_t num_cols;
    int64_t group;  // inputs that share a scale
    DType dtype;
};

template <class Visit>
void fields(QuantizeRowsArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.num_rows);
}

struct QuantLinearArgs {
    LinearOutput output;
    const void* rows;    // [num_rows, records of a row], as quantize_rows writes them with this group
    const void* weight;  // packed
    int64_t num_rows;
    int64_t num_outputs;
    int64_t num_inputs;
    int64_t group;
    QuantKind kind;
};

template <class Visit>
void fields(QuantLinearArgs& a, const Visit& visit) {
    visit(a.output.out, a.rows, a.output.residual, a.num_rows);
}

struct PackQuantizedArgs {
    void* packed;
    const void* source;  // GGUF's blocks [num_outputs, bytes of a row]; of int8 and int4: [num_outputs, num_inputs] of dtype
    int64_t num_outputs;
    int64_t num_inputs;
    int64_t group;  // of activations
    QuantKind kind;
    DType dtype;  // of a source that is not yet quantised
};

struct UnpackQuantizedArgs {
    void* out;            // [num_rows, num_inputs] of dtype
    const void* weight;   // packed
    const int64_t* rows;  // [num_rows], which outputs' weights
    int64_t num_rows;
    int64_t num_inputs;
    int64_t group;
    float scale;  // as of UnpackRowsArgs
    QuantKind kind;
    DType dtype;
};

template <class Visit>
void fields(UnpackQuantizedArgs& a, const Visit& visit) {
    visit(a.out, a.rows, a.num_rows);
}

enum class Activation : int { silu = 0, gelu_tanh = 1, soft_cap = 2, gelu = 3, relu = 4 };

struct ActivationArgs {
    void* out;       // [num_rows, num_cols] of dtype
    const void* x;   // [num_rows, num_cols] of dtype; gated: [num_rows, 2 * num_cols], what is activated first
    int64_t num_rows;
    int64_t num_cols;
    bool is_gated;
    Activation kind;
    float cap;  // of soft_cap: cap * tanh(x / cap)
    DType dtype;
};

template <class Visit>
void fields(ActivationArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.num_rows);
}

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
};

template <class Visit>
void fields(QkvHeadsArgs& a, const Visit& visit) {
    visit(a.q, a.k, a.v, a.qkv, a.positions, a.num_tokens);
}

struct HeadStrides {  // in elements, of [num_tokens, num_heads, head_size] whose heads are dense
    int64_t token;
    int64_t head;
};

// Of cached K and V. In one byte: int8 or FP8 E4M3, with a float32 scale for each token and head.
enum class CacheDType : int { f32 = 0, bf16 = 1, f16 = 2, int8 = 3, f8 = 4 };

constexpr int64_t num_bytes(CacheDType dtype) {
    return dtype == CacheDType::f32 ? 4 : dtype == CacheDType::int8 || dtype == CacheDType::f8 ? 1 : 2;
}

struct WriteKvArgs {
    void* k_cache;         // [num_slots, num_kv_heads, head_size] of cache_dtype
    void* v_cache;         // the same
    float* k_scale;        // [num_slots, num_kv_heads] of a type of one byte, else null
    float* v_scale;        // the same
    const void* k;         // [num_tokens, num_kv_heads, head_size] of dtype
    const void* v;         // the same
    const int64_t* slots;  // [num_tokens]; of two tokens with one slot, either may win
    int64_t num_tokens;
    int64_t num_kv_heads;
    int64_t head_size;
    HeadStrides k_strides;
    HeadStrides v_strides;
    DType dtype;
    CacheDType cache_dtype;
};

template <class Visit>
void fields(WriteKvArgs& a, const Visit& visit) {
    visit(a.k, a.v, a.slots, a.num_tokens);
}

struct PagedAttentionArgs {
    void* out;                   // [num_tokens, num_heads * head_size] of dtype
    const void* q;               // [num_tokens, num_heads, head_size] of dtype
    const void* k_cache;         // [num_slots, num_kv_heads, head_size] of cache_dtype
    const void* v_cache;         // the same
    const float* k_scale;        // [num_slots, num_kv_heads] of a type of one byte, else null
    const float* v_scale;        // the same
    const int32_t* rows;         // [3, num_rows]: first position, number of tokens, index of the first token in q
    const int32_t* block_table;  // [num_rows, table_stride]; position p stands in slot
                                 // block_table[row, p / block_size] * block_size + p % block_size
    const float* alibi_slopes;   // [num_heads], or null
    const float* sinks;          // [num_heads], or null
    int64_t num_rows;
    int64_t table_stride;
    int64_t block_size;
    int64_t window;  // a query sees this many keys, itself included; 0: all
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_size;
    HeadStrides q_strides;
    float scale;
    float soft_cap;  // 0: none
    DType dtype;
    CacheDType cache_dtype;
};

template <class Visit>
void fields(PagedAttentionArgs& a, const Visit& visit) {
    visit(a.out, a.q, a.rows, a.block_table, a.num_rows, a.table_stride);
}

struct RouteArgs {
    float* weights;      // [num_tokens, top_k], of a token's experts in rising order
    int64_t* places;     // [num_tokens, top_k]: the row of each of them among those that are sorted by expert
    int32_t* experts;    // [num_tokens * top_k], of the sorted rows: rising
    int64_t* tokens;     // [num_tokens * top_k], of the sorted rows: rising within an expert
    const void* logits;  // [num_tokens, num_experts] of dtype
    int64_t num_tokens;
    int64_t num_experts;
    int64_t top_k;
    bool renormalize;
    DType dtype;
};

template <class Visit>
void fields(RouteArgs& a, const Visit& visit) {
    visit(a.weights, a.places, a.experts, a.tokens, a.logits, a.num_tokens);
}

// A matrix for each expert, over rows that are sorted by expert. `linear` is as of one expert, but for its weight, with
// the rows of all.
struct ExpertLinearArgs {
    LinearArgs linear;
    const void* const* weights;  // [num_experts], packed
    const int32_t* experts;      // [num_rows], rising
};

template <class Visit>
void fields(ExpertLinearArgs& a, const Visit& visit) {
    visit(a.linear.output.out, a.linear.x, a.experts, a.linear.num_rows);
}

struct QuantExpertLinearArgs {
    QuantLinearArgs linear;
    const void* const* weights;  // as of ExpertLinearArgs
    const int32_t* experts;
};

template <class Visit>
void fields(QuantExpertLinearArgs& a, const Visit& visit) {
    visit(a.linear.output.out, a.linear.rows, a.experts, a.linear.num_rows);
}

struct CombineExpertsArgs {
    void* out;             // [num_tokens, num_cols] of dtype
    const void* x;         // [num_tokens * top_k, num_cols] of dtype, sorted by expert
    const float* weights;  // [num_tokens, top_k], as `route` writes them
    const int64_t* places;
    int64_t num_tokens;
    int64_t num_cols;
    int64_t top_k;
    DType dtype;
};

template <class Visit>
void fields(CombineExpertsArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.weights, a.places, a.num_tokens);
}

// Rows that have a low-rank adapter, sorted by its slot, in a layer whose outputs have `num_parts` parts. max_rank is a
// multiple of 16.
struct LoraShrinkArgs {
    float* out;             // [num_rows, num_parts, max_rank]: scale * (x A'), up to the adapter's rank; what follows means nothing
    const void* x;          // [.., num_inputs] of dtype
    const void* a;          // [num_slots, num_parts, max_rank, num_inputs] of dtype
    const float* scales;    // [num_slots, num_parts]
    const int32_t* ranks;   // [num_slots, num_parts]; 0: the adapter does not touch this part
    const int64_t* tokens;  // [num_rows], rows of x
    const int32_t* slots;   // [num_rows], rising
    int64_t num_rows;
    int64_t num_parts;
    int64_t max_rank;
    int64_t num_inputs;
    DType dtype;
};

template <class Visit>
void fields(LoraShrinkArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.tokens, a.slots, a.num_rows);
}

struct LoraExpandArgs {
    void* y;               // [.., num_outputs] of dtype: x B' is added to the rows `tokens`
    const float* x;        // [num_rows, num_parts, max_rank], as lora_shrink writes it
    const void* b;         // [num_slots, blocks of 64 outputs of all parts, max_rank, 64] of dtype
    const int64_t* ends;   // [num_parts], the column behind each part
    const int32_t* ranks;  // as of LoraShrinkArgs
    const int64_t* tokens;
    const int32_t* slots;
    int64_t num_rows;
    int64_t num_parts;
    int64_t max_rank;
    int64_t num_outputs;
    DType dtype;
};

template <class Visit>
void fields(LoraExpandArgs& a, const Visit& visit) {
    visit(a.y, a.x, a.tokens, a.slots, a.num_rows);
}

struct AddArgs {
    void* out;      // [num_rows, num_cols] of dtype
    const void* x;  // as out
    const void* y;  // as out
    int64_t num_rows;
    int64_t num_cols;
    DType dtype;
};

template <class Visit>
void fields(AddArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.y, a.num_rows);
}

struct SelectRowsArgs {
    void* out;            // [num_rows, row_bytes]
    const void* x;        // [.., row_bytes]
    const int64_t* rows;  // [num_rows], indices into x
    int64_t num_rows;
    int64_t row_bytes;
};

template <class Visit>
void fields(SelectRowsArgs& a, const Visit& visit) {
    visit(a.out, a.x, a.rows, a.num_rows);
}

struct GreedyArgs {
    int64_t* token_ids;   // [num_rows]: the greatest score's column, the lowest among equals; -1: it is not finite
    const float* scores;  // [num_rows, num_cols]
    int64_t num_rows;
    int64_t num_cols;
};

template <class Visit>
void fields(GreedyArgs& a, const Visit& visit) {
    visit(a.token_ids, a.scores, a.num_rows);
}

struct DrawArgs {
    int64_t* token_ids;        // [num_rows]: the drawn columns; -1: the scaled row has no finite maximum
    const float* scores;       // [.., num_cols]
    const int64_t* rows;       // [num_rows], rows of scores
    const float* temperature;  // [num_rows], above 0
    const float* log_min_p;    // [num_rows]; -inf: none
    const int64_t* top_k;      // [num_rows], at least 1; num_cols or more: all
    const double* top_p;       // [num_rows], above 0; 1: all
    const int64_t* keys;       // [num_rows], of the noise
    int64_t num_rows;
    int64_t num_cols;
};

template <class Visit>
void fields(DrawArgs& a, const Visit& visit) {
    visit(a.token_ids, a.scores, a.rows, a.temperature, a.log_min_p, a.top_k, a.top_p, a.keys, a.num_rows);
}

struct DescribeArgs {
    float* values;             // [num_rows, 1 + width]: log-probabilities of the token, then of the likeliest
    int64_t* ids;              // [num_rows, 1 + width]: the token, then the likeliest
    int64_t* ranks;            // [num_rows]: how many are at least as likely as the token
    const float* logits;       // [num_rows, num_cols]
    const int64_t* token_ids;  // [num_rows]
    const int64_t* num_top;    // [num_rows]: how many of the likeliest are written, at most width
    int64_t num_rows;
    int64_t num_cols;
    int64_t width;  // at most num_cols
};

template <class Visit>
void fields(DescribeArgs& a, const Visit& visit) {
    visit(a.values, a.ids, a.ranks, a.logits, a.token_ids, a.num_top, a.num_rows);
}

}  // namespace motet
