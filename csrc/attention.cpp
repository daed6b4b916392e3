// Attention over paged K and V. Defined by motet/ops/reference/attention.py.
//
// Tasks are (row, KV head, tile of queries): the query heads of a KV head and a few queries share each load of K and V.
// A tile walks the keys in splits of kSplit and, inside, in groups of kGroup, both counted from position 0. Per group:
// scores with the keys in lanes and the head's dimensions in order, the running maximum (Milakov and Gimelshein, 2018),
// then the values in the order of their keys. A split starts afresh, and split results are folded in order.
//
// Why it is exact: per query there is one order of operations, given by its own position. Its mates in the tile only
// add rows to the register blocks. A group or a split of which it sees nothing is skipped, and in a group of which it
// sees a part the other scores are -inf, their weights 0 in sums of weights, and their values are not read. So neither
// the chunk, nor mates, nor blocks, nor threads change a bit: whether a task walks one split or all is a free choice.
#include "attention_tile.h"
#include "kernels.h"

namespace motet {
namespace MOTET_ISA {
namespace {

// Under this many multiplications one member does it all.
constexpr int64_t kMinProducts = 50000;

// ---- Tasks --------------------------------------------------------------------------------------------------------

// A tile with some of its splits. A tile whose splits are spread over tasks keeps their results in `partials`, one
// after the other (see partial_at), until all are there.
struct Task {
    Tile tile;
    int64_t first_split;
    int64_t end_split;
    float* partials;  // null: the task has all splits and writes the output
};

Partial partial_at(const Task& task, int64_t index, int64_t stride) {
    const int64_t num_rows = task.tile.num_rows();
    float* values = task.partials + index * num_rows * (stride + kLanes);
    return {values + num_rows * stride, values + num_rows * stride + num_rows, values};
}

struct Plan {
    int64_t num_tasks = 0;
    int64_t num_spread = 0;    // tiles whose splits are tasks
    int64_t num_floats = 0;    // of partials
    int64_t num_products = 0;  // multiplications of queries with keys
};

// Counts the work and, where given memory, lists it: the tasks, and for each spread tile one Task of all its splits.
Plan plan_tasks(const PagedAttentionArgs& a, bool may_spread, Task* tasks, Task* spread, float* partials) {
    Plan plan;
    const int64_t stride = round_up(a.head_size, kLanes);
    const int64_t group = a.num_heads / a.num_kv_heads;
    const int64_t tile_heads = smaller(group, kMaxRows), tile_queries = kMaxRows / tile_heads;
    for (int64_t row = 0; row < a.num_rows; ++row) {
        const int64_t start = a.rows[row], num_queries = a.rows[a.num_rows + row];
        // The last queries see the most keys: theirs is the longest task, so it goes first.
        for (int64_t first = (num_queries - 1) / tile_queries * tile_queries; first >= 0 && num_queries > 0;
             first -= tile_queries) {
            const int64_t end = smaller(first + tile_queries, num_queries);
            const int64_t first_key = first_visible(a, start + first);
            const int64_t first_split = first_key / kSplit, end_split = (start + end - 1) / kSplit + 1;
            const bool is_spread = may_spread && num_queries <= tile_queries && end_split - first_split > 1;
            plan.num_products += (end - first) * (start + end - first_key) * a.num_heads * a.head_size;
            for (int64_t head = 0; head < a.num_heads;) {
                const int64_t kv_head = head / group, end_head = smaller(head + tile_heads, (kv_head + 1) * group);
                const Tile tile = {row, kv_head, head, end_head - head, first, end - first};
                const Task whole = {tile, first_split, end_split,
                                    is_spread && partials ? partials + plan.num_floats : nullptr};
                if (is_spread) {
                    for (int64_t split = first_split; split < end_split; ++split) {
                        if (tasks) {
                            tasks[plan.num_tasks] = {tile, split, split + 1, nullptr};
                            tasks[plan.num_tasks].partials = partial_at(whole, split - first_split, stride).values;
                        }
                        ++plan.num_tasks;
                    }
                    if (spread) spread[plan.num_spread] = whole;
                    ++plan.num_spread;
                    plan.num_floats += (end_split - first_split) * tile.num_rows() * (stride + kLanes);
                } else {
                    if (tasks) tasks[plan.num_tasks] = whole;
                    ++plan.num_tasks;
                }
                head = end_head;
            }
        }
    }
    return plan;
}

Prefetch prefetch_of(const PagedAttentionArgs& a, const Task& task) {
    return {a, task.tile.row, task.tile.kv_head, greater(task.tile.first_key(a), task.first_split * kSplit),
            smaller(task.tile.end_key(a), task.end_split * kSplit)};
}

void run_task(const PagedAttentionArgs& args, const Task& task, const Scratch& scratch, int64_t stride, Prefetch& own,
              Prefetch& next) {
    TileWalk walk(args, task.tile, scratch);
    walk.load_queries();
    if (task.partials) return walk.attend_split(task.first_split, partial_at(task, 0, stride), own, next);
    clear(scratch.total, task.tile.num_rows(), stride);
    for (int64_t split = task.first_split; split < task.end_split; ++split) {
        walk.attend_split(split, scratch.split, own, next);
        fold(scratch.total, scratch.split, task.tile.num_rows(), stride);
    }
    walk.finish(scratch.total);
}

void finish_spread(const PagedAttentionArgs& args, const Task& task, const Scratch& scratch, int64_t stride) {
    clear(scratch.total, task.tile.num_rows(), stride);
    for (int64_t split = task.first_split; split < task.end_split; ++split) {
        fold(scratch.total, partial_at(task, split - task.first_split, stride), task.tile.num_rows(), stride);
    }
    TileWalk(args, task.tile, scratch).finish(scratch.total);
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, const Team& team) {
    const int64_t stride = round_up(args.head_size, kLanes);
    const bool may_spread = team.size() > 1;
    const Plan plan = plan_tasks(args, may_spread, nullptr, nullptr, nullptr);
    const int64_t scratch_floats = round_up(Scratch::num_floats(stride), kLanes);
    const int64_t num_floats = plan.num_floats + team.size() * scratch_floats;
    char* memory = team.memory(num_floats * int64_t(sizeof(float)) +
                               (plan.num_tasks + plan.num_spread) * int64_t(sizeof(Task)));
    float* scratch_memory = reinterpret_cast<float*>(memory);
    float* partials = scratch_memory + team.size() * scratch_floats;
    Task* tasks = reinterpret_cast<Task*>(partials + plan.num_floats);
    Task* spread = tasks + plan.num_tasks;
    if (team.thread() == 0) plan_tasks(args, may_spread, tasks, spread, partials);
    team.barrier();

    const Scratch scratch(scratch_memory + team.thread() * scratch_floats, stride);
    // The heads of a row are neighbours in memory and as tasks: where there are plenty, one thread takes them together.
    const bool has_plenty = plan.num_tasks >= 8 * team.size() * args.num_kv_heads;
    const int64_t grab = plan.num_products < kMinProducts ? plan.num_tasks : has_plenty ? args.num_kv_heads : 1;
    const auto prefetch_at = [&](int64_t i) {
        return i < plan.num_tasks ? prefetch_of(args, tasks[i]) : Prefetch(args, 0, 0, 0, 0);
    };
    int64_t first = team.take(grab);
    Prefetch own = prefetch_at(first);
    while (first < plan.num_tasks) {
        // Where there are few tasks, none is taken before its time.
        const int64_t end = smaller(first + grab, plan.num_tasks);
        int64_t following = has_plenty ? team.take(grab) : plan.num_tasks;
        for (int64_t i = first; i < end; ++i) {
            Prefetch next = prefetch_at(i + 1 < end ? i + 1 : following);
            run_task(args, tasks[i], scratch, stride, own, next);
            own = next;
        }
        if (!has_plenty) own = prefetch_at(following = team.take(grab));
        first = following;
    }
    if (plan.num_spread == 0) return;
    team.barrier();
    const Range range = team.share(plan.num_spread);
    for (int64_t i = range.begin; i < range.end; ++i) finish_spread(args, spread[i], scratch, stride);
}

}  // namespace MOTET_ISA
}  // namespace motet
