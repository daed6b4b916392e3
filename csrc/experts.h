// Rows that are sorted by expert: how a team shares out the matrix products of all experts.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace motet {
namespace MOTET_ISA {
namespace {

MOTET_INLINE int64_t end_of_run(const int32_t* experts, int64_t first, int64_t num_rows) {
    int64_t end = first;
    while (end < num_rows && experts[end] == experts[first]) ++end;
    return end;
}

// Calls visit(expert, rows, block) for each block of outputs of each expert that has rows. Members take blocks, as of a
// plain linear layer; `products`: of one row and block, `least`: of a member of the team.
template <class Visit>
void for_each_expert(const Team& team, const int32_t* experts, int64_t num_rows, int64_t num_blocks, int64_t products,
                     int64_t least, const Visit& visit) {
    int64_t num_runs = 0;
    for (int64_t row = 0; row < num_rows; ++row) num_runs += row == 0 || experts[row] != experts[row - 1];
    int64_t run = 0;
    Range rows = {0, end_of_run(experts, 0, num_rows)};
    team.for_each(num_runs * num_blocks, least * num_runs / (num_rows * products + 1), [&](int64_t i) {
        for (; run < i / num_blocks; ++run) rows = {rows.end, end_of_run(experts, rows.end, num_rows)};  // i only rises
        visit(experts[rows.begin], rows, i % num_blocks);
    });
}

}  // namespace
}  // namespace MOTET_ISA
}  // namespace motet
