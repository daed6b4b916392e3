// Kernel calls as values, and programs of them.
//
// While a model's forward is recorded, each kernel call becomes a node of a program. Where its arguments depend on the
// step they hold references instead of addresses (of buffers that the program lays out) and symbols instead of counts.
// A replay fills them in and lets one team walk the nodes, with a barrier after each: no Python, no lock, and one
// program for every number of tokens and rows.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace motet {

// A reference to a buffer of a program, in place of an address: bit 62, the buffer's index, an offset in bytes.
constexpr uint64_t kReferenceBit = uint64_t(1) << 62;
constexpr int kIndexShift = 40;

inline bool is_reference(uint64_t address) { return address & kReferenceBit; }
inline int64_t buffer_of(uint64_t address) { return int64_t((address & ~kReferenceBit) >> kIndexShift); }
inline uint64_t offset_of(uint64_t address) { return address & ((uint64_t(1) << kIndexShift) - 1); }
inline uint64_t reference_to(int64_t buffer) { return kReferenceBit | uint64_t(buffer) << kIndexShift; }

// `times` times the value of a symbol stands as a negative count.
constexpr int kTimesShift = 16;

inline bool is_symbol(int64_t count) { return count < 0; }
inline int64_t symbol_of(int64_t count) { return (-1 - count) & ((int64_t(1) << kTimesShift) - 1); }
inline int64_t times_of(int64_t count) { return ((-1 - count) >> kTimesShift) + 1; }
inline int64_t count_of_symbol(int64_t symbol, int64_t times) { return -1 - (symbol | (times - 1) << kTimesShift); }

constexpr int64_t kMaxArgBytes = 256;

// A kernel with its arguments.
struct Node {
    const char* name;
    void (*run)(const void* kernel, const void* args, const Team& team);
    const void* kernel;
    // Calls address(uint64_t&) and count(int64_t&) for every field that may change from step to step.
    void (*visit)(void* args, void* context, void (*address)(void*, uint64_t*), void (*count)(void*, int64_t*));
    bool is_idle = false;  // one of its counts is zero: there is nothing to do, and nothing to wait for
    alignas(8) char args[kMaxArgBytes];
};

template <class Args>
Node make_node(const char* name, void (*kernel)(const Args&, const Team&), const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxArgBytes);
    Node node;
    node.name = name;
    node.kernel = reinterpret_cast<const void*>(kernel);
    node.run = [](const void* function, const void* values, const Team& team) {
        reinterpret_cast<void (*)(const Args&, const Team&)>(function)(*static_cast<const Args*>(values), team);
    };
    node.visit = [](void* values, void* context, void (*address)(void*, uint64_t*), void (*count)(void*, int64_t*)) {
        fields(*static_cast<Args*>(values), [&](auto&... field) {
            const auto visit_one = [&](auto& one) {
                if constexpr (std::is_pointer_v<std::remove_reference_t<decltype(one)>>) {
                    uint64_t word;
                    static_assert(sizeof(word) == sizeof(one));
                    std::memcpy(&word, &one, sizeof(word));
                    address(context, &word);
                    std::memcpy(&one, &word, sizeof(word));
                } else {
                    count(context, &one);
                }
            };
            (visit_one(field), ...);
        });
    };
    std::memcpy(node.args, &args, sizeof(args));
    return node;
}

// Where kernel calls go.
class Target {
public:
    virtual ~Target() = default;
    virtual void submit(const Node& node) = 0;
};

// Runs nodes with a team of `num_threads`, a barrier after each; after_node(index) is called by one member.
void run_nodes(const Node* nodes, int64_t num_nodes, int num_threads, void (*after_node)(void*, int64_t), void* context);

// The memory of a step that a program asks for: inputs are given with each replay, buffers lie in one arena.
struct Buffer {
    int64_t num_rows;   // one symbol
    int64_t row_bytes;  // 0 for an input
    int64_t input;      // which input it is, or -1
    bool is_kept;       // an output: lives until the next replay
    int64_t first = -1;  // the nodes between which it is used
    int64_t last = -1;
    int64_t place[2] = {0, 0};  // bytes per row before it in its region: shared with others, and all apart
};

class Program : public Target {
public:
    void submit(const Node& node) override { nodes_.push_back(node); }

    // Each returns a reference.
    uint64_t add_input();
    uint64_t add_buffer(int64_t num_rows, int64_t row_bytes);
    void keep(uint64_t reference) { buffers_[size_t(buffer_of(reference))].is_kept = true; }

    // Ends the recording: lifetimes of buffers, and from them their places.
    void finish(int64_t num_symbols);

    // `apart`: no two buffers share memory (for comparing each with what an eager run made).
    int64_t num_arena_bytes(const std::vector<int64_t>& counts, bool apart) const;
    int64_t place_of(uint64_t reference, const std::vector<int64_t>& counts, bool apart) const;

    struct Step {
        std::vector<int64_t> counts;    // by symbol
        std::vector<uint64_t> inputs;   // addresses
        char* arena;                    // num_arena_bytes(counts, apart), aligned to 64
        int num_threads;
        bool apart;
        bool poisons;  // fills the arena, and every buffer behind its last use, with bytes that make NaN
    };
    void replay(const Step& step);

    // A replay that notes the seconds of each node.
    std::vector<double> time_nodes(const Step& step);

    int64_t num_nodes() const { return int64_t(nodes_.size()); }
    const char* node_name(int64_t node) const { return nodes_[size_t(node)].name; }
    // The node that first touches a buffer, -1 if none does.
    int64_t first_use(uint64_t reference) const { return buffers_[size_t(buffer_of(reference))].first; }

private:
    // Where a buffer begins, in bytes from the arena's start; `starts`: region_starts of the same counts.
    static int64_t place(const Buffer& buffer, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
                         bool apart);
    std::vector<uint64_t> addresses(const Step& step) const;
    void resolve(const Step& step);
    void lay_out(int64_t symbol, bool apart);
    std::vector<int64_t> region_starts(const std::vector<int64_t>& counts, bool apart) const;
    int64_t num_bytes(const Buffer& buffer, const std::vector<int64_t>& counts) const;

    std::vector<Node> nodes_;
    std::vector<Node> resolved_;
    std::vector<Buffer> buffers_;
    std::vector<int64_t> region_widths_[2];  // bytes per row, by symbol
    int64_t num_inputs_ = 0;
};

}  // namespace motet
