// SPDX-License-Identifier: Apache-2.0
// The backward pass: dQ, dK and dV of each KV head by one task, by a grid of them or by two passes (cut.hpp);
// the gradients by the bias and by the sink, which heads may share, by tasks of their own.
#include <algorithm>
#include <cstring>

#include "cpu/backward/cut.hpp"
#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {
namespace {

SharedGradient shared(const std::optional<MutableView>& lowered, const std::optional<MutableView>& given,
                      unsigned char* unfinished) {
  if (!given) return {};
  const Shape& own = given->shape;
  return {lower(View(*lowered)), own.batch, own.heads, own.length, own.dim, unfinished};
}

// Nothing is marked yet.
UnfinishedGradients unmarked(const GradientProblem& g) {
  const Problem& p = g.forward;
  UnfinishedGradients unfinished;
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& s : p.sequences) {
    unfinished.first_row.push_back(rows), unfinished.first_key.push_back(keys);
    rows += p.heads * s.queries, keys += p.kv_heads * s.keys;
  }
  const auto resize = [](std::vector<unsigned char>& x, const std::optional<MutableView>& of,
                         std::int64_t n) {
    if (of) x.resize(static_cast<std::size_t>(n));
  };
  resize(unfinished.q, g.q, rows);
  resize(unfinished.k, g.k, keys);
  resize(unfinished.v, g.v, keys);
  resize(unfinished.bias, g.bias, g.bias ? g.given.bias->shape.elements() : 0);
  resize(unfinished.sink, g.sink, g.sink ? g.given.sink->shape.elements() : 0);
  return unfinished;
}

GradientCall lower_gradients(const GradientProblem& g, const Call& forward, UnfinishedGradients& unfinished) {
  return {.forward = forward,
          .out_gradient = lower(g.out_gradient),
          .log_sum_exp_gradient = lower_if_given(g.log_sum_exp_gradient),
          .q = lower_if_given(g.q),
          .k = lower_if_given(g.k),
          .v = lower_if_given(g.v),
          .bias = shared(g.bias, g.given.bias, unfinished.bias.data()),
          .sink = shared(g.sink, g.given.sink, unfinished.sink.data()),
          .scale = g.forward.scale,
          .accumulates = g.given.accumulate,
          .is_packed = !g.forward.inputs.query_starts.empty(),
          .unfinished_q = unfinished.q.data(),
          .unfinished_k = unfinished.k.data(),
          .unfinished_v = unfinished.v.data(),
          .first_row = unfinished.first_row.data(),
          .first_key = unfinished.first_key.data()};
}

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

Reason gradient_refuses(const Target& target, const GradientProblem& g) {
  if (g.forward.value_dim == 0)  // a tile product needs something to sum over
    return [] { return std::string("it takes values of at least one dimension"); };
  if (target.only_bf16 && g.out_gradient.dtype != DType::bf16)
    return [&g] {
      return std::string("it takes gradients of out in bf16, not ") + name_of(g.out_gradient.dtype);
    };
  if (g.forward.options.softcap && *g.forward.options.softcap < 0x1p-126f)  // slopes need its reciprocal
    return [] { return std::string("it takes a softcap of at least 2^-126"); };
  return prefill_refuses(target, g.forward);
}

UnfinishedGradients gradient(const Target& target, const GradientProblem& problem) {
  UnfinishedGradients unfinished = unmarked(problem);
  // Weights are measured against log-sum-exps, in base 2.
  const Problem& forward = problem.forward;
  const LoweredCall lowered(
      forward,
      softmax::gradient_scaling_of(forward.scale, static_cast<float>(forward.options.softcap.value_or(0))));
  const GradientCall g = lower_gradients(problem, lowered.call, unfinished);
  clear_padding(problem);
  if (forward.inputs.q.dtype == DType::f64) {
    gradient_f64(target, g);
    return unfinished;
  }
  if (g.forward.kv_heads > 0) run_parts(target, g);
  if (g.bias.tensor.data) run_bias(target, g);
  if (g.sink.tensor.data) run_sink(target, g);
  return unfinished;
}

}  // namespace heed::cpu
