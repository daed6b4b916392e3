// Mixture of experts: which experts see a token, and the sum of what they give. Defined by motet/ops/reference/moe.py;
// the experts' products are in linear.cpp and quant_linear.cpp.
//
// A token's choice and weights come from its own scores: sixteen running sums of exponentials, folded in the order of
// sum(), and then its chosen experts in rising order, in which their outputs are added, too. Where the batch puts a
// token's rows among those of an expert only decides where they lie.
#include "kernels.h"
#include "vec_math.h"

namespace motet {
namespace MOTET_ISA {
namespace {

constexpr int64_t kMinElements = 4096;  // of a member of the team

// The expert that follows one with this score in the order of falling scores, of equal ones the lower first.
int64_t next_best(const float* scores, int64_t num_experts, float score, int64_t expert) {
    int64_t best = -1;
    for (int64_t e = 0; e < num_experts; ++e) {
        const bool comes_later = scores[e] < score || (scores[e] == score && e > expert);
        if (comes_later && (best < 0 || scores[e] > scores[best])) best = e;
    }
    return best;
}

// `scores`: memory for the padded row. A token with a NaN or an infinity gets the first experts, with weights NaN.
template <class T>
void route_token(const RouteArgs& a, int64_t token, float* scores) {
    const int64_t padded = (a.num_experts + kLanes - 1) / kLanes * kLanes;
    convert(scores, static_cast<const T*>(a.logits) + token * a.num_experts, a.num_experts);
    for (int64_t e = a.num_experts; e < padded; ++e) scores[e] = -__builtin_inff();
    f32x16 most = load(scores);
    for (int64_t e = kLanes; e < padded; e += kLanes) most = max(most, load(scores + e));
    const float greatest = largest(most);
    f32x16 sums = {};
    for (int64_t e = 0; e < padded; e += kLanes) sums = sums + exp(load(scores + e) - broadcast(greatest));
    const float total = sum(sums);
    const bool is_finite = total >= 1.0f;

    int64_t* chosen = a.places + token * a.top_k;
    float* weights = a.weights + token * a.top_k;
    float score = __builtin_inff();
    int64_t expert = -1;
    for (int64_t n = 0; n < a.top_k; ++n) {
        expert = is_finite ? next_best(scores, a.num_experts, score, expert) : n;
        score = scores[expert];
        int64_t at = n;
        for (; at > 0 && chosen[at - 1] > expert; --at) chosen[at] = chosen[at - 1];
        chosen[at] = expert;
    }
    float share = 0.0f;
    for (int64_t n = 0; n < a.top_k; ++n) {
        weights[n] = is_finite ? exp(scores[chosen[n]] - greatest) / total : __builtin_nanf("");
        share += weights[n];
    }
    if (!a.renormalize) return;
    for (int64_t n = 0; n < a.top_k; ++n) weights[n] /= share;
}

template <class T>
void combine_as(const CombineExpertsArgs& a, const Team& team) {
    const Range tokens = team.share(a.num_tokens, kMinElements / (a.top_k * a.num_cols + 1));
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        const int64_t* places = a.places + token * a.top_k;
        const float* weights = a.weights + token * a.top_k;
        T* out = static_cast<T*>(a.out) + token * a.num_cols;
        for (int64_t i = 0; i < a.num_cols; i += kLanes) {
            const int64_t count = a.num_cols - i;
            f32x16 value = {};
            for (int64_t n = 0; n < a.top_k; ++n) {
                const T* x = static_cast<const T*>(a.x) + places[n] * a.num_cols + i;
                value = value + (count >= kLanes ? load(x) : load_first(x, count)) * weights[n];
            }
            count >= kLanes ? store(out + i, value) : store_first(out + i, value, count);
        }
    }
}

}  // namespace

void route(const RouteArgs& a, const Team& team) {
    const int64_t padded = (a.num_experts + kLanes - 1) / kLanes * kLanes;
    char* memory = team.memory((team.size() + 1) * padded * int64_t(sizeof(float)));  // enough for the counts below, too
    float* scores = reinterpret_cast<float*>(memory) + team.thread() * padded;
    const Range tokens = team.share(a.num_tokens, kMinElements / (a.num_experts * a.top_k + 1));
    for (int64_t token = tokens.begin; token < tokens.end; ++token) {
        switch (a.dtype) {
            case DType::f32: route_token<float>(a, token, scores); break;
            case DType::bf16: route_token<bf16>(a, token, scores); break;
            case DType::f16: route_token<f16>(a, token, scores); break;
        }
    }
    team.barrier();
    if (team.thread() > 0) return;
    // A counting sort: `next` is first the number of rows of each expert, then where its next row belongs.
    int64_t* next = reinterpret_cast<int64_t*>(memory);
    for (int64_t e = 0; e < a.num_experts; ++e) next[e] = 0;
    for (int64_t i = 0; i < a.num_tokens * a.top_k; ++i) ++next[a.places[i]];
    int64_t first = 0;
    for (int64_t e = 0; e < a.num_experts; ++e) {
        const int64_t count = next[e];
        next[e] = first;
        first += count;
    }
    for (int64_t i = 0; i < a.num_tokens * a.top_k; ++i) {
        const int64_t expert = a.places[i], place = next[expert]++;
        a.places[i] = place;
        a.experts[place] = int32_t(expert);
        a.tokens[place] = i / a.top_k;
    }
}

void combine_experts(const CombineExpertsArgs& a, const Team& team) {
    switch (a.dtype) {
        case DType::f32: return combine_as<float>(a, team);
        case DType::bf16: return combine_as<bf16>(a, team);
        case DType::f16: return combine_as<f16>(a, team);
    }
}

}  // namespace MOTET_ISA
}  // namespace motet
