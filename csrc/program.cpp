#include "program.h"

#include <algorithm>
#include <chrono>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace motet {

void run_nodes(const Node* nodes, int64_t num_nodes, int num_threads, void (*after_node)(void*, int64_t),
               void* context) {
    static thread_local TeamState state;
    TeamState& shared = state;
    const auto walk = [&](const Team& team) {
        for (int64_t i = 0; i < num_nodes; ++i) {
            if (!nodes[i].is_idle) {
                nodes[i].run(nodes[i].kernel, nodes[i].args, team);
                team.barrier();
            }
            if (after_node) {
                if (team.thread() == 0) after_node(context, i);
                team.barrier();
            }
        }
    };
#if defined(_OPENMP)
    if (num_threads > 1) {
#pragma omp parallel num_threads(num_threads)
        walk(Team(shared, omp_get_thread_num(), omp_get_num_threads()));
        return;
    }
#endif
    walk(Team(shared, 0, 1));
}

uint64_t Program::add_input() {
    buffers_.push_back({0, 0, num_inputs_++, false});
    return reference_to(int64_t(buffers_.size()) - 1);
}

uint64_t Program::add_buffer(int64_t num_rows, int64_t row_bytes) {
    buffers_.push_back({num_rows, (row_bytes + 63) / 64 * 64, -1, false});
    return reference_to(int64_t(buffers_.size()) - 1);
}

void Program::finish(int64_t num_symbols) {
    struct Context {
        std::vector<Buffer>* buffers;
        int64_t node;
    } context{&buffers_, 0};
    for (Node& node : nodes_) {
        node.visit(
            node.args, &context,
            [](void* at, uint64_t* address) {
                if (!is_reference(*address)) return;
                const Context& c = *static_cast<Context*>(at);
                Buffer& buffer = (*c.buffers)[size_t(buffer_of(*address))];
                if (buffer.first < 0) buffer.first = c.node;
                buffer.last = c.node;
            },
            [](void*, int64_t*) {});
        ++context.node;
    }
    for (Buffer& buffer : buffers_) {
        if (buffer.is_kept) buffer.last = num_nodes();
    }
    for (int apart = 0; apart < 2; ++apart) {
        region_widths_[apart].assign(size_t(num_symbols), 0);
        for (int64_t symbol = 0; symbol < num_symbols; ++symbol) lay_out(symbol, apart != 0);
    }
    resolved_ = nodes_;
}

// First fit: a buffer takes the lowest place that no buffer holds which is used at the same time. Buffers come in the
// order of their first use, as they were made.
void Program::lay_out(int64_t symbol, bool apart) {
    std::vector<const Buffer*> placed;
    int64_t& width = region_widths_[apart][size_t(symbol)];
    for (Buffer& buffer : buffers_) {
        if (buffer.input >= 0 || buffer.first < 0 || symbol_of(buffer.num_rows) != symbol) continue;
        int64_t place = 0;
        const auto by_place = [apart](const Buffer* a, const Buffer* b) { return a->place[apart] < b->place[apart]; };
        std::sort(placed.begin(), placed.end(), by_place);
        for (const Buffer* other : placed) {
            const bool overlaps = apart || (other->first <= buffer.last && buffer.first <= other->last);
            if (overlaps && other->place[apart] < place + buffer.row_bytes) {
                place = std::max(place, other->place[apart] + other->row_bytes);
            }
        }
        buffer.place[apart] = place;
        width = std::max(width, place + buffer.row_bytes);
        placed.push_back(&buffer);
    }
}

std::vector<int64_t> Program::region_starts(const std::vector<int64_t>& counts, bool apart) const {
    std::vector<int64_t> starts = {0};
    for (size_t symbol = 0; symbol < region_widths_[apart].size(); ++symbol) {
        starts.push_back(starts.back() + region_widths_[apart][symbol] * counts[symbol]);
    }
    return starts;
}

int64_t Program::num_arena_bytes(const std::vector<int64_t>& counts, bool apart) const {
    return region_starts(counts, apart).back();
}

int64_t Program::num_bytes(const Buffer& buffer, const std::vector<int64_t>& counts) const {
    return buffer.row_bytes * counts[size_t(symbol_of(buffer.num_rows))];
}

int64_t Program::place(const Buffer& buffer, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts,
                       bool apart) {
    const size_t symbol = size_t(symbol_of(buffer.num_rows));
    return starts[symbol] + buffer.place[apart] * counts[symbol];
}

int64_t Program::place_of(uint64_t reference, const std::vector<int64_t>& counts, bool apart) const {
    return place(buffers_[size_t(buffer_of(reference))], region_starts(counts, apart), counts, apart);
}

std::vector<uint64_t> Program::addresses(const Step& step) const {
    const std::vector<int64_t> starts = region_starts(step.counts, step.apart);
    std::vector<uint64_t> found;
    for (const Buffer& buffer : buffers_) {
        if (buffer.input >= 0) {
            found.push_back(step.inputs[size_t(buffer.input)]);
        } else {
            const int64_t offset = place(buffer, starts, step.counts, step.apart);
            found.push_back(reinterpret_cast<uint64_t>(step.arena + offset));
        }
    }
    return found;
}

// Fills addresses and counts in.
void Program::resolve(const Step& step) {
    struct Context {
        const Step* step;
        std::vector<uint64_t> addresses;
        bool finds_zero;
    } context{&step, addresses(step), false};
    for (size_t i = 0; i < nodes_.size(); ++i) {
        context.finds_zero = false;
        std::memcpy(resolved_[i].args, nodes_[i].args, sizeof(nodes_[i].args));
        resolved_[i].visit(
            resolved_[i].args, &context,
            [](void* at, uint64_t* address) {
                if (!is_reference(*address)) return;
                *address = static_cast<Context*>(at)->addresses[size_t(buffer_of(*address))] + offset_of(*address);
            },
            [](void* at, int64_t* count) {
                if (!is_symbol(*count)) return;
                Context& c = *static_cast<Context*>(at);
                *count = c.step->counts[size_t(symbol_of(*count))] * times_of(*count);
                c.finds_zero |= *count == 0;
            });
        resolved_[i].is_idle = context.finds_zero;
    }
}

void Program::replay(const Step& step) {
    resolve(step);
    if (!step.poisons) return run_nodes(resolved_.data(), num_nodes(), step.num_threads, nullptr, nullptr);

    constexpr int kPoison = 0xff;
    struct Context {
        const Program* program;
        const Step* step;
        std::vector<uint64_t> addresses;
    } context{this, &step, addresses(step)};
    const auto poison_dead = [](void* at, int64_t node) {
        const Context& c = *static_cast<Context*>(at);
        for (size_t i = 0; i < c.addresses.size(); ++i) {
            const Buffer& buffer = c.program->buffers_[i];
            if (buffer.input < 0 && buffer.last == node && !c.step->apart) {
                std::memset(reinterpret_cast<void*>(c.addresses[i]), kPoison,
                            size_t(c.program->num_bytes(buffer, c.step->counts)));
            }
        }
    };
    std::memset(step.arena, kPoison, size_t(num_arena_bytes(step.counts, step.apart)));
    run_nodes(resolved_.data(), num_nodes(), step.num_threads, poison_dead, &context);
}

std::vector<double> Program::time_nodes(const Step& step) {
    using Clock = std::chrono::steady_clock;
    resolve(step);
    struct Context {
        std::vector<double> seconds;
        Clock::time_point last = Clock::now();
    } context;
    const auto note = [](void* at, int64_t) {
        Context& c = *static_cast<Context*>(at);
        const Clock::time_point now = Clock::now();
        c.seconds.push_back(std::chrono::duration<double>(now - c.last).count());
        c.last = now;
    };
    run_nodes(resolved_.data(), num_nodes(), step.num_threads, note, &context);
    return context.seconds;
}

}  // namespace motet
