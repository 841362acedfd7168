// SPDX-License-Identifier: Apache-2.0
#include "cpu/weight_gradient.hpp"

#include <algorithm>

#include "cpu/lower.hpp"
#include "cpu/run.hpp"
#include "cpu/tasks.hpp"
#include "cpu/weight_gradient_call.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

// Of a part: its sums, and a block of tokens of x and y, stay in the second-level cache.
constexpr std::int64_t most_inputs = 384, most_outputs = 128;

std::int64_t parts_of(std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; }

// How many numbers of a token's row lie together: those of a head, or of all where heads follow each other.
std::int64_t run_of(const View& x) {
  const bool follow = x.stride.heads == x.shape.dim * x.stride.dim;
  return follow ? x.shape.heads * x.shape.dim : x.shape.dim;
}

}  // namespace

void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias) {
  const Target& target = best_target();
  const std::int64_t outputs = w.shape.length, inputs = w.shape.dim,
                     wanted = static_cast<std::int64_t>(threads::concurrency()) * tasks_per_thread;
  WeightGradientCall g{.x = lower(x),
                       .y = lower(y),
                       .x_dim = run_of(x),
                       .y_dim = run_of(y),
                       .length = x.shape.length,
                       .tokens = x.shape.batch * x.shape.length,
                       .inputs = inputs,
                       .outputs = outputs,
                       .w = static_cast<float*>(w.data),
                       .bias = static_cast<float*>(bias.data),
                       .most_inputs = std::min(inputs, most_inputs),
                       .most_outputs = 0};
  if (g.tokens == 0) return;
  const std::int64_t across = parts_of(inputs, g.most_inputs), tile = target.tile_columns;
  const std::int64_t even = parts_of(parts_of(outputs, parts_of(wanted, across)), tile) * tile;
  g.most_outputs = std::min(even, most_outputs);
  const std::int64_t parts = across * parts_of(outputs, g.most_outputs);
  threads::Scratch scratch(std::min(static_cast<std::size_t>(parts), threads::concurrency()),
                           target.weight_gradient_floats(g));
  const double multiplications =
      static_cast<double>(g.tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
  share_out(parts, multiplications, [&](std::int64_t n) {
    const std::int64_t input = n % across * g.most_inputs, output = n / across * g.most_outputs;
    const threads::Scratch::Lease lease(scratch);
    target.weight_gradient(g,
                           {.first_input = input,
                            .inputs = std::min(g.most_inputs, inputs - input),
                            .first_output = output,
                            .outputs = std::min(g.most_outputs, outputs - output)},
                           lease.floats());
  });
}

}  // namespace heed::cpu
