// SPDX-License-Identifier: Apache-2.0
// A stretch of queries, checked, and read row by row as floats.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "heed/view.hpp"

namespace HEED_NAMESPACE::view {

// Throws Error unless the run's tokens are as many as its queries and keys, UTF-8, and of a bearable length,
// and the layer's heads fit together.
void check_run(const Run&);
void check_layer(const Layer&);

// Where a stretch belongs.
struct Place {
  std::int64_t heads = 0, queries = 0, keys = 0, first_row = 0;
};

// Throws Error unless the stretch has these heads and keys, no more rows than are left, no negative weight
// and none that it says is hidden.
void check_rows(const Rows&, const Place&);

// Calls use(head, row of the stretch, weights, hidden) for every row, the rows of a head in order, heads on
// all threads.
using UseRow = std::function<void(std::size_t head, std::span<const float> weights, const bool* hidden)>;
void for_every_row(const Rows&, const UseRow&);

// task(i) for i in [0, tasks), on as many threads as heed uses.
void on_all_threads(std::size_t tasks, const std::function<void(std::size_t)>& task);

}  // namespace HEED_NAMESPACE::view
