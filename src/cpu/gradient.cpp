// SPDX-License-Identifier: Apache-2.0
#include "cpu/gradient.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/lower.hpp"
#include "cpu/run.hpp"
#include "cpu/tasks.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

// Sums of dQ that one task may hold, in floats, before rows are better left to tasks of their own.
constexpr std::int64_t most_row_sums = std::int64_t{1} << 24;
// Rows of a task that goes through all keys: the more, the less packing keys costs.
constexpr std::int64_t most_rows_per_task = 1056;

SharedGradient shared(const std::optional<MutableView>& lowered, const std::optional<MutableView>& given,
                      unsigned char* left) {
  if (!given) return {};
  const Shape& own = given->shape;
  return {lower(View(*lowered)), own.batch, own.heads, own.length, own.dim, left};
}

// Nothing is left yet.
LeftGradients nothing_left(const GradientProblem& g) {
  const Problem& p = g.forward;
  LeftGradients left;
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& s : p.sequences) {
    left.first_row.push_back(rows), left.first_key.push_back(keys);
    rows += p.heads * s.queries, keys += p.kv_heads * s.keys;
  }
  const auto resize = [](std::vector<unsigned char>& x, const std::optional<MutableView>& of, std::int64_t n) {
    if (of) x.resize(static_cast<std::size_t>(n));
  };
  resize(left.q, g.q, rows);
  resize(left.k, g.k, keys);
  resize(left.v, g.v, keys);
  resize(left.bias, g.bias, g.bias ? g.given.bias->shape.elements() : 0);
  resize(left.sink, g.sink, g.sink ? g.given.sink->shape.elements() : 0);
  return left;
}

GradientCall lower_gradients(const GradientProblem& g, const Call& forward, LeftGradients& left) {
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
          .left_q = left.q.data(),
          .left_k = left.k.data(),
          .left_v = left.v.data(),
          .first_row = left.first_row.data(),
          .first_key = left.first_key.data()};
}

// One pass has five products for every pair of blocks and one task for every KV head; two passes, over rows and
// over keys, have seven, and as many tasks as there are blocks.
bool takes_one_pass(const GradientCall& g) {
  const Call& c = g.forward;
  if (!g.q.data || (!g.k.data && !g.v.data)) return false;
  if (c.queries * c.group() * c.dim > most_row_sums) return false;
  const auto parallel = products(c) < worth_sharing ? 1 : static_cast<std::int64_t>(threads::concurrency());
  const std::int64_t heads = c.batch * c.kv_heads, rounds = (heads + parallel - 1) / parallel;
  return rounds * parallel * 5 <= heads * 7;
}

// How many blocks of `unit` make a task, so that there are enough tasks.
std::int64_t blocks_per_task(const Call& c, std::int64_t blocks, std::int64_t most) {
  const std::int64_t heads = std::max<std::int64_t>(1, c.batch * c.kv_heads),
                     wanted = static_cast<std::int64_t>(threads::concurrency()) * tasks_per_thread,
                     parts = std::max<std::int64_t>(1, (wanted + heads - 1) / heads);
  return std::clamp<std::int64_t>(blocks / parts, 1, most);
}

std::vector<GradientPart> cut(const GradientCall& g) {
  const Call& c = g.forward;
  const bool one_pass = takes_one_pass(g);
  std::vector<GradientPart> parts;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Sequence& s = c.sequences[b];
    const std::int64_t rows = s.queries * c.group();
    const auto blocks = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; };
    const std::int64_t row_step =
        gradient_rows * blocks_per_task(c, blocks(rows, gradient_rows), most_rows_per_task / gradient_rows);
    const std::int64_t key_step = gradient_keys * blocks_per_task(c, blocks(s.keys, gradient_keys), 8);
    for (std::int64_t h = 0; h < c.kv_heads; ++h) {
      if (one_pass) {
        parts.push_back({b, h, 0, rows, 0, s.keys, true, true});
        continue;
      }
      for (std::int64_t row = 0; g.q.data && row < rows; row += row_step)
        parts.push_back({b, h, row, std::min(row_step, rows - row), 0, s.keys, true, false});
      for (std::int64_t key = 0; (g.k.data || g.v.data) && key < s.keys; key += key_step)
        parts.push_back({b, h, 0, rows, key, std::min(key_step, s.keys - key), false, true});
    }
  }
  return parts;
}

void run_parts(const Target& target, const GradientCall& g) {
  const std::vector<GradientPart> parts = cut(g);
  if (parts.empty()) return;
  std::int64_t floats = 0;
  for (const GradientPart& part : parts) floats = std::max(floats, target.gradient_floats(g, part));
  threads::Scratch scratch(std::min(parts.size(), threads::concurrency()), floats);
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const threads::Scratch::Lease lease(scratch);
    target.gradient(g, parts[static_cast<std::size_t>(n)], lease.floats());
  });
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
  share_out(g.sink.batch * g.sink.heads, products(g.forward), [&](std::int64_t n) {
    target.sink_gradient(g, n / g.sink.heads, n % g.sink.heads);
  });
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
    return [&g] { return std::string("it takes gradients of out in bf16, not ") + name_of(g.out_gradient.dtype); };
  return prefill_refuses(target, g.forward);
}

LeftGradients gradient(const Target& target, const GradientProblem& problem) {
  LeftGradients left = nothing_left(problem);
  const LoweredCall lowered(problem.forward);
  const GradientCall g = lower_gradients(problem, lowered.call, left);
  clear_padding(problem);
  if (g.forward.kv_heads > 0) run_parts(target, g);
  if (g.bias.tensor.data) run_bias(target, g);
  if (g.sink.tensor.data) run_sink(target, g);
  return left;
}

}  // namespace heed::cpu
