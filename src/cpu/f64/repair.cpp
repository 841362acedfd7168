// SPDX-License-Identifier: Apache-2.0
// Repair (S13): the rows that a kernel could not finish are found by what it wrote, and a task is a panel of
// them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/f64/elements.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

bool query_holds_nan(const Call& c, std::int64_t b, const F64Row& row) {
  const TensorStrides& by = c.q.stride;
  const std::int64_t first =
      b * by.batch + row.head * by.heads + (c.sequences[b].first_query + row.query) * by.length;
  for (std::int64_t d = 0; d < c.dim; ++d)
    if (std::isnan(read_element(c.q, first + d * by.dim))) return true;
  return false;
}

// Rows of a KV head that need repair, in panels whose queries see about the same keys.
struct RowsToRepair {
  std::vector<F64Row> rows{};
  std::vector<F64Panel> panels{};
  std::int64_t most_rows = 0, most_keys = 0;  // of a panel

  explicit RowsToRepair(const Call& c) {
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
        const auto first = std::ssize(rows);
        find(c, b, kv_head);
        cut(c, b, kv_head, first);
      }
    for (F64Panel& panel : panels) panel.rows = rows.data() + panel.first_query;
  }

 private:
  void find(const Call& c, std::int64_t b, std::int64_t kv_head) {
    const auto needs_repair = best_target().repairs.needs_repair;
    for (std::int64_t i = c.first_query; i < c.end_query(c.sequences[b]); ++i)
      for (std::int64_t n = 0; n < c.group(); ++n)
        if (const F64Row row{c.head(kv_head, n), i}; needs_repair(c, b, row)) rows.push_back(row);
  }
  // A panel's first_query is the number of its first row here.
  void cut(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t first) {
    constexpr std::int64_t most_scores = std::int64_t{1} << 18, fewest_rows = 8, farthest = 128;
    const Sequence& s = c.sequences[b];
    const auto keys_of = [&](std::int64_t from, std::int64_t to) {  // queries [from, to]
      if (c.stage != ScoreStage::none) return s.keys;
      const std::int64_t begin = std::max<std::int64_t>(0, from + s.first_offset);
      return std::min(s.key_count, c.front) +
             std::max<std::int64_t>(0, std::min(s.key_count, to + s.end_offset) - begin);
    };
    for (std::int64_t n = first; n < std::ssize(rows);) {
      const std::int64_t begin = n, query = at(n).query,
                         each = std::clamp(most_scores / std::max<std::int64_t>(1, keys_of(query, query)),
                                           fewest_rows, f64_panel_rows);
      while (n < std::ssize(rows) && n - begin < each && at(n).query - query < farthest) ++n;
      panels.push_back({b, c.head(kv_head, 0), begin, n - begin});
      most_rows = std::max(most_rows, n - begin);
      most_keys = std::max(most_keys, keys_of(query, at(n - 1).query));
    }
  }
  const F64Row& at(std::int64_t n) const { return rows[static_cast<std::size_t>(n)]; }
};

}  // namespace

void repair(const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  const RowsToRepair found(c);
  if (found.panels.empty()) return;
  const F64Repairs& kernels = best_target().repairs;
  Layout layout;
  const auto scratch =
      layout.give_each_slot<double>(kernels.row_doubles(c, found.most_rows, found.most_keys));
  TaskMemory memory(slots_for(found.panels.size()), layout);
  share_out(std::ssize(found.panels), products(c), [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    kernels.rows(c, found.panels[static_cast<std::size_t>(n)], slot[scratch]);
  });
}

std::vector<RowToRepair> rows_to_repair(const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  const RowsToRepair found(c);
  std::vector<RowToRepair> all;
  for (const F64Panel& panel : found.panels)
    for (std::int64_t r = 0; r < panel.queries; ++r)
      if (const F64Row row = panel.row(r);
          c.drop_probability > 0 || !query_holds_nan(c, panel.batch_entry, row))
        all.push_back({panel.batch_entry, row.head, row.query});
  return all;
}

}  // namespace heed::cpu
