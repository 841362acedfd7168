// SPDX-License-Identifier: Apache-2.0
// The backward pass: dQ, dK and dV of each KV head by one task, by a grid of them or by two passes;
// the gradients by the bias and by the sink, which heads may share, by tasks of their own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/backward/call.hpp"
#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

SharedGradient shared(const std::optional<MutableView>& lowered, const std::optional<MutableView>& given,
                      unsigned char* marks) {
  if (!given) return {};
  const Shape& own = given->shape;
  return {lower(View(*lowered)), own.batch, own.heads, own.length, own.dim, marks};
}

// Nothing is marked yet.
RepairMarks unmarked(const GradientProblem& g) {
  const Problem& p = g.forward;
  RepairMarks marks;
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& s : p.sequences) {
    marks.first_row.push_back(rows), marks.first_key.push_back(keys);
    rows += p.heads * s.queries, keys += p.kv_heads * s.keys;
  }
  const auto resize = [](std::vector<unsigned char>& x, const std::optional<MutableView>& of,
                         std::int64_t n) {
    if (of) x.resize(static_cast<std::size_t>(n));
  };
  resize(marks.q, g.q, rows);
  resize(marks.k, g.k, keys);
  resize(marks.v, g.v, keys);
  resize(marks.bias, g.bias, g.bias ? g.given.bias->shape.elements() : 0);
  resize(marks.sink, g.sink, g.sink ? g.given.sink->shape.elements() : 0);
  return marks;
}

GradientCall lower_gradients(const GradientProblem& g, const Call& forward, RepairMarks& marks) {
  return {.forward = forward,
          .out_gradient = lower(g.out_gradient),
          .log_sum_exp_gradient = lower_if_given(g.log_sum_exp_gradient),
          .q = lower_if_given(g.q),
          .k = lower_if_given(g.k),
          .v = lower_if_given(g.v),
          .bias = shared(g.bias, g.given.bias, marks.bias.data()),
          .sink = shared(g.sink, g.given.sink, marks.sink.data()),
          .scale = g.forward.scale(),
          .accumulates = g.given.accumulate,
          .is_packed = !g.forward.inputs.query_starts.empty(),
          .repair_q = marks.q.data(),
          .repair_k = marks.k.data(),
          .repair_v = marks.v.data(),
          .first_row = marks.first_row.data(),
          .first_key = marks.first_key.data()};
}

// Sums of dQ that one KV head may have, in floats: with more, rows had better be tasks of their own.
constexpr std::int64_t max_row_sums = std::int64_t{1} << 24;
// Floats that all KV heads may take where all are under way at once, 128 MiB: the sums of dQ, dK and dV, the
// packed keys, the memory of every thread (0.35 MiB at 64 dimensions), and the list of cells.
constexpr std::int64_t max_shared_floats = std::int64_t{1} << 25, floats_per_thread = std::int64_t{1} << 17,
                       floats_per_cell = 28;
constexpr std::int64_t max_cells = std::int64_t{1} << 16;  // about: steps are whole blocks
// Rows of a task that goes through all keys: the more, the less packing keys costs.
constexpr std::int64_t max_rows_per_task = 1056;
// Blocks of rows of a part that shares its sums, at least: a single one is read from the cache of another
// core, and nothing can be done before its first lines arrive. 12 heads of 1024 x 64 on 16 threads of a Xeon
// took 6.66 ms with one block, 6.06 with two, 6.01 with three (November 2026). The fewer, the shorter threads
// wait for the last part.
constexpr std::int64_t min_shared_blocks = 2;
// The share of a task's time by which one thread takes longer than another for the same work: neighbours on
// the machine, or other cores. With a task for each of 16 heads, 16 threads spent 24 % of their time waiting
// for the last.
constexpr double unevenness = 0.2;
// What several tasks for a head take more than one.
constexpr double cost_of_cutting = 1.1;

std::int64_t ceil_div(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

enum class Way : std::uint8_t {
  whole,       // one pass, a task for every KV head
  shared,      // one pass, a grid of tasks for a KV head, which add to its sums one after another. Of many
               // heads only the last, one or two for each thread, are grids, so that all threads end together
  two_passes,  // over rows and over keys: seven products instead of five, but no task waits for another
};

class Planner {
 public:
  explicit Planner(const GradientCall& call)
      : g(call),
        c(call.forward),
        heads(std::max<std::int64_t>(1, c.batch * c.kv_heads)),
        parallel(products(c) < worth_sharing ? 1 : static_cast<std::int64_t>(threads::concurrency())),
        whole_heads(std::max<std::int64_t>(0, heads / parallel - 1) * parallel) {}

  // The way of the shortest time, in products of one KV head.
  Way way() const {
    const std::int64_t sums = c.queries * c.group() * c.dim;
    if (!g.q.data || (!g.k.data && !g.v.data) || sums > max_row_sums) return Way::two_passes;
    const auto rounds = static_cast<double>(ceil_div(heads, parallel));
    const double whole = 5 * (parallel > 1 ? rounds + unevenness : rounds),
                 twice = 7 * cost_of_cutting * per_thread(heads),
                 shared = shared_floats() > max_shared_floats
                              ? twice
                              : 5 * (per_thread(whole_heads) + cost_of_cutting * shared_time());
    if (whole <= std::min(twice, shared)) return Way::whole;
    return shared < twice ? Way::shared : Way::two_passes;
  }

  // A KV head as one task.
  void cut_whole(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    parts.push_back({b, h, 0, s.queries * c.group(), 0, s.keys, true, true});
  }

  // A KV head as a grid of (rows, keys), or of one cell.
  void cut_grid(std::int64_t b, std::int64_t h, GradientCut& cut) const {
    const bool is_whole = b * c.kv_heads + h < whole_heads;
    const std::size_t first = cut.parts.size();
    if (is_whole)
      cut_whole(b, h, cut.parts), cut.grids.push_back({1, 1});
    else
      cut.grids.push_back(cut_cells(b, h, cut.parts));
    for (std::size_t n = first; n < cut.parts.size(); ++n) cut.times.push_back(pairs_of(cut.parts[n]));
  }

  void cut_twice(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    const std::int64_t rows = s.queries * c.group();
    const std::int64_t row_step =
        gradient_rows * blocks_per_task(ceil_div(rows, gradient_rows), max_rows_per_task / gradient_rows);
    const std::int64_t key_step = gradient_keys * blocks_per_task(ceil_div(s.keys, gradient_keys), 8);
    for (std::int64_t row = 0; g.q.data && row < rows; row += row_step)
      parts.push_back({b, h, row, std::min(row_step, rows - row), 0, s.keys, true, false});
    for (std::int64_t key = 0; (g.k.data || g.v.data) && key < s.keys; key += key_step)
      parts.push_back({b, h, 0, rows, key, std::min(key_step, s.keys - key), false, true});
  }

 private:
  threads::Grid cut_cells(std::int64_t b, std::int64_t h, std::vector<GradientPart>& parts) const {
    const Sequence& s = c.sequences[b];
    const std::int64_t rows = s.queries * c.group(), row_step = shared_rows(), key_step = shared_keys();
    const threads::Grid grid{std::max<std::int64_t>(1, ceil_div(rows, row_step)),
                             std::max<std::int64_t>(1, ceil_div(s.keys, key_step))};
    for (std::int64_t row = 0; row < grid.rows * row_step; row += row_step)
      for (std::int64_t key = 0; key < grid.columns * key_step; key += key_step)
        parts.push_back({b, h, row, std::min(row_step, rows - row), key, std::min(key_step, s.keys - key),
                         true, true, true});
    return grid;
  }

  // Rows times the keys before the end of what the last row sees.
  float pairs_of(const GradientPart& part) const {
    const Sequence& s = c.sequences[part.batch_entry];
    const std::int64_t last_query = (part.first_row + part.rows - 1) / std::max<std::int64_t>(1, c.group()),
                       end = std::min(s.key_count, last_query + s.end_offset);
    return static_cast<float>(part.rows * std::clamp<std::int64_t>(end - part.first_key, 0, part.keys));
  }

  double per_thread(std::int64_t n) const { return static_cast<double>(n) / static_cast<double>(parallel); }
  std::int64_t shared_heads() const { return heads - whole_heads; }

  // The time of the cells of one grid that must follow each other; or that of all cells on all threads, some
  // of which have nothing to do while few cells may begin, and while few remain.
  double shared_time() const {
    const auto rows = static_cast<double>(grid_rows()), keys = static_cast<double>(grid_columns());
    const double each = per_thread(shared_heads());
    return std::max((rows + keys - 1) / (rows * keys), each + 1 / (each * rows * keys));
  }

  std::int64_t shared_floats() const {
    const std::int64_t sums = c.queries * c.group() * c.dim + c.keys * (c.dim + c.value_dim),
                       packed = c.keys * (2 * c.dim + c.value_dim);
    return shared_heads() * (sums + packed + grid_rows() * grid_columns() * floats_per_cell) +
           parallel * floats_per_thread;
  }

  // Cells along each side of a grid, about: enough that more of them may begin than there are threads, nearly
  // all the time, but not so many that the list of cells grows beyond `max_cells`.
  std::int64_t side() const {
    const auto max_side =
        static_cast<std::int64_t>(std::sqrt(static_cast<double>(max_cells / shared_heads())));
    return std::max<std::int64_t>(1, std::min(16 * parallel / shared_heads(), max_side));
  }
  std::int64_t grid_rows() const { return ceil_div(c.queries * c.group(), shared_rows()); }
  std::int64_t grid_columns() const { return ceil_div(c.keys, shared_keys()); }
  std::int64_t shared_rows() const {
    return gradient_rows *
           std::max(min_shared_blocks, ceil_div(c.queries * c.group(), gradient_rows) / side());
  }
  std::int64_t shared_keys() const {
    return gradient_keys * std::max<std::int64_t>(1, ceil_div(c.keys, gradient_keys) / side());
  }

  // How many blocks make a task of two passes, so that there are enough tasks.
  std::int64_t blocks_per_task(std::int64_t blocks, std::int64_t max_blocks) const {
    const std::int64_t wanted = static_cast<std::int64_t>(threads::concurrency()) * tasks_per_thread,
                       parts = std::max<std::int64_t>(1, ceil_div(wanted, heads));
    return std::clamp<std::int64_t>(blocks / parts, 1, max_blocks);
  }

  const GradientCall& g;
  const Call& c;
  const std::int64_t heads, parallel;
  const std::int64_t whole_heads;  // the first ones: they are whole where the others are shared
};

}  // namespace

GradientCut cut_gradients(const GradientCall& g) {
  const Call& c = g.forward;
  const Planner planner(g);
  const Way way = planner.way();
  GradientCut cut;
  for (std::int64_t head = 0; head < c.batch * c.kv_heads; ++head) {
    const std::int64_t b = head / c.kv_heads, h = head % c.kv_heads;
    if (way == Way::whole) planner.cut_whole(b, h, cut.parts);
    if (way == Way::shared) planner.cut_grid(b, h, cut);
    if (way == Way::two_passes) planner.cut_twice(b, h, cut.parts);
  }
  return cut;
}

namespace {

GradientFloats larger(const GradientFloats& a, const GradientFloats& b) {
  return {std::max(a.task, b.task), std::max(a.head, b.head)};
}

// Parts in any order, each with memory of its own.
void run_apart(const Target& target, const GradientCall& g, const std::vector<GradientPart>& parts) {
  GradientFloats floats{0, 0};
  for (const GradientPart& part : parts) floats = larger(floats, target.gradient_floats(g, part));
  Layout layout;
  const auto of_task = layout.give_each_slot<float>(floats.task),
             of_head = layout.give_each_slot<float>(floats.head);
  TaskMemory memory(slots_for(parts.size()), layout);
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    target.gradient(g, parts[static_cast<std::size_t>(n)], slot[of_task], slot[of_head]);
  });
}

// Parts that share the sums of a head: each after those that add to the same sums before it. The memory of
// such a head is for all its tasks; a head that is one task has it in the task's slot.
void run_in_waves(const Target& target, const GradientCall& g, const GradientCut& cut) {
  GradientFloats shared{0, 0}, whole{0, 0};
  std::size_t whole_grids = 0;  // the first
  for (std::size_t grid = 0, first = 0; grid < cut.grids.size(); first += cut.grids[grid++].cells()) {
    const GradientPart& part = cut.parts[first];
    GradientFloats& floats = part.is_shared ? shared : whole;
    floats = larger(floats, target.gradient_floats(g, part));
    if (!part.is_shared) whole_grids = grid + 1;
  }
  Layout layout;
  const auto of_heads =
      layout.share<float>((cut.grids.size() - whole_grids) * static_cast<std::size_t>(shared.head));
  const auto of_task = layout.give_each_slot<float>(std::max(shared.task, whole.task)),
             of_whole_head = layout.give_each_slot<float>(whole.head);
  TaskMemory memory(slots_for(cut.parts.size()), layout);
  threads::Waves waves(cut.grids, cut.times);
  share_out(std::ssize(cut.parts), products(g.forward), [&](std::int64_t) {
    const threads::Waves::Cell cell = waves.take();
    const GradientPart& part = cut.parts[cell.index];
    const TaskMemory::Slot slot(memory);
    float* const of_head =
        part.is_shared
            ? memory[of_heads].data() + static_cast<std::int64_t>(cell.grid - whole_grids) * shared.head
            : slot[of_whole_head];
    target.gradient(g, part, slot[of_task], of_head);
    waves.end(cell);
  });
}

void run_parts(const Target& target, const GradientCall& g) {
  const GradientCut cut = cut_gradients(g);
  if (cut.parts.empty()) return;
  if (cut.grids.empty())
    run_apart(target, g, cut.parts);
  else
    run_in_waves(target, g, cut);
}

// Every element of the bias's gradient is in one part.
std::vector<BiasPart> cut_bias(const GradientCall& g) {
  const Call& c = g.forward;
  const SharedGradient& bias = g.bias;
  const bool has_own_rows = g.is_packed && bias.length != 1;
  const std::int64_t entries = has_own_rows ? c.batch : bias.batch;
  std::vector<BiasPart> parts;
  for (std::int64_t b = 0; b < entries; ++b)
    for (std::int64_t h = 0; h < bias.heads; ++h) {
      const std::int64_t rows = has_own_rows ? c.sequences[b].queries : bias.length;
      for (std::int64_t row = 0; row < rows; row += gradient_rows)
        for (std::int64_t key = 0; key < bias.dim; key += gradient_keys) parts.push_back({b, h, row, key});
    }
  return parts;
}

void run_bias(const Target& target, const GradientCall& g) {
  const std::vector<BiasPart> parts = cut_bias(g);
  if (parts.empty()) return;
  Layout layout;
  const auto scratch = layout.give_each_slot<float>(target.bias_gradient_floats(g));
  TaskMemory memory(slots_for(parts.size()), layout);
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    target.bias_gradient(g, parts[static_cast<std::size_t>(n)], slot[scratch]);
  });
}

void run_sink(const Target& target, const GradientCall& g) {
  share_out(g.sink.batch * g.sink.heads, products(g.forward),
            [&](std::int64_t n) { target.sink_gradient(g, n / g.sink.heads, n % g.sink.heads); });
}

// Rows of padded queries get nothing from anybody (G8).
void clear_padding(const GradientProblem& g) {
  if (!g.q || g.given.accumulate || g.forward.inputs.query_counts.empty()) return;
  const MutableView& q = *g.q;
  const auto bytes = static_cast<std::int64_t>(bytes_of(q.dtype));
  for (std::int64_t b = 0; b < q.shape.batch; ++b)
    for (std::int64_t h = 0; h < q.shape.heads; ++h)
      for (std::int64_t i = g.forward.sequences[static_cast<std::size_t>(b)].queries; i < q.shape.length; ++i)
        for (std::int64_t d = 0; d < q.shape.dim; ++d)
          std::memset(static_cast<std::byte*>(q.data) + bytes * (b * q.stride.batch + h * q.stride.heads +
                                                                 i * q.stride.length + d * q.stride.dim),
                      0, static_cast<std::size_t>(bytes));
}

}  // namespace

RepairMarks gradient(const Target& target, const GradientProblem& problem) {
  RepairMarks marks = unmarked(problem);
  // Weights are measured against log-sum-exps, in base 2.
  const Problem& forward = problem.forward;
  const LoweredCall lowered(forward, softmax::gradient_scaling_of(forward.scale(), forward.cap()));
  const GradientCall g = lower_gradients(problem, lowered.call, marks);
  clear_padding(problem);
  if (forward.inputs.q.dtype == DType::f64) {
    gradient_f64(target, g);
    return marks;
  }
  if (g.forward.kv_heads > 0) run_parts(target, g);
  if (g.bias.tensor.data) run_bias(target, g);
  if (g.sink.tensor.data) run_sink(target, g);
  return marks;
}

void repair(const GradientProblem& problem, RepairMarks& marks) {
  const LoweredCall lowered(problem.forward);
  repair(lower_gradients(problem, lowered.call, marks));
}

}  // namespace heed::cpu
