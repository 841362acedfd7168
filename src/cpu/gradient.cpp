// SPDX-License-Identifier: Apache-2.0
#include "cpu/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/gradient_cut.hpp"
#include "cpu/lower.hpp"
#include "cpu/run.hpp"
#include "cpu/tasks.hpp"
#include "threads/scratch.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {
namespace {

SharedGradient shared(const std::optional<MutableView>& lowered, const std::optional<MutableView>& given,
                      unsigned char* left) {
  if (!given) return {};
  const Shape& own = given->shape;
  return {lower(View(*lowered)), own.batch, own.heads, own.length, own.dim, left};
}

// Nothing is left yet.
UnfinishedGradients nothing_left(const GradientProblem& g) {
  const Problem& p = g.forward;
  UnfinishedGradients left;
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& s : p.sequences) {
    left.first_row.push_back(rows), left.first_key.push_back(keys);
    rows += p.heads * s.queries, keys += p.kv_heads * s.keys;
  }
  const auto resize = [](std::vector<unsigned char>& x, const std::optional<MutableView>& of,
                         std::int64_t n) {
    if (of) x.resize(static_cast<std::size_t>(n));
  };
  resize(left.q, g.q, rows);
  resize(left.k, g.k, keys);
  resize(left.v, g.v, keys);
  resize(left.bias, g.bias, g.bias ? g.given.bias->shape.elements() : 0);
  resize(left.sink, g.sink, g.sink ? g.given.sink->shape.elements() : 0);
  return left;
}

GradientCall lower_gradients(const GradientProblem& g, const Call& forward, UnfinishedGradients& left) {
  return {.forward = forward,
          .out_gradient = lower(g.out_gradient),
          .log_sum_exp_gradient = lower_if_given(g.log_sum_exp_gradient),
          .q = lower_if_given(g.q),
          .k = lower_if_given(g.k),
          .v = lower_if_given(g.v),
          .bias = shared(g.bias, g.given.bias, left.bias.data()),
          .sink = shared(g.sink, g.given.sink, left.sink.data()),
          .scale = g.forward.scale,
          .accumulates = g.given.accumulate,
          .is_packed = !g.forward.inputs.query_starts.empty(),
          .unfinished_q = left.q.data(),
          .unfinished_k = left.k.data(),
          .unfinished_v = left.v.data(),
          .first_row = left.first_row.data(),
          .first_key = left.first_key.data()};
}

GradientFloats larger(const GradientFloats& a, const GradientFloats& b) {
  return {std::max(a.scratch, b.scratch), std::max(a.kept, b.kept)};
}

// Parts in any order, each with memory of its own.
void run_apart(const Target& target, const GradientCall& g, const std::vector<GradientPart>& parts) {
  GradientFloats floats{0, 0};
  for (const GradientPart& part : parts) floats = larger(floats, target.gradient_floats(g, part));
  threads::Scratch scratch(std::min(parts.size(), threads::concurrency()), floats.scratch + floats.kept);
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const threads::Scratch::Lease lease(scratch);
    target.gradient(g, parts[static_cast<std::size_t>(n)], lease.floats(), lease.floats() + floats.scratch);
  });
}

// Parts that share sums: each after those that add to the same ones before it. What they leave to each other
// lies in front of the slots; what others keep, behind their own scratch.
void run_in_waves(const Target& target, const GradientCall& g, const GradientCut& cut) {
  GradientFloats shared{0, 0}, whole{0, 0};
  std::size_t whole_grids = 0;  // the first
  for (std::size_t grid = 0, first = 0; grid < cut.grids.size(); first += cut.grids[grid++].cells()) {
    const GradientPart& part = cut.parts[first];
    GradientFloats& floats = part.is_shared ? shared : whole;
    floats = larger(floats, target.gradient_floats(g, part));
    if (!part.is_shared) whole_grids = grid + 1;
  }
  threads::Waves waves(cut.grids, cut.times);
  const auto shared_bytes = static_cast<std::size_t>(shared.kept) * sizeof(float);
  threads::Scratch scratch(std::min(cut.parts.size(), threads::concurrency()),
                           std::max(shared.scratch, whole.scratch + whole.kept),
                           (cut.grids.size() - whole_grids) * shared_bytes);
  share_out(std::ssize(cut.parts), products(g.forward), [&](std::int64_t) {
    const threads::Waves::Cell cell = waves.take();
    const GradientPart& part = cut.parts[cell.index];
    const threads::Scratch::Lease lease(scratch);
    float* const kept = part.is_shared ? scratch.front<float>() +
                                             static_cast<std::int64_t>(cell.grid - whole_grids) * shared.kept
                                       : lease.floats() + whole.scratch;
    target.gradient(g, part, lease.floats(), kept);
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
  threads::Scratch scratch(std::min(parts.size(), threads::concurrency()), target.bias_gradient_floats(g));
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const threads::Scratch::Lease lease(scratch);
    target.bias_gradient(g, parts[static_cast<std::size_t>(n)], lease.floats());
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
  UnfinishedGradients left = nothing_left(problem);
  // Weights are measured against log-sum-exps, in base 2.
  const Problem& forward = problem.forward;
  const LoweredCall lowered(
      forward, softmax::gradient_scaling_of(forward.scale, forward.options.softcap.value_or(0.0f)));
  const GradientCall g = lower_gradients(problem, lowered.call, left);
  clear_padding(problem);
  if (g.forward.kv_heads > 0) run_parts(target, g);
  if (g.bias.tensor.data) run_bias(target, g);
  if (g.sink.tensor.data) run_sink(target, g);
  return left;
}

}  // namespace heed::cpu
