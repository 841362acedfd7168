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

// Of a part: a block of tokens of y stays in the second-level cache, while panels of x and the sums pass by.
// The more, the less often x and y are packed.
constexpr std::int64_t max_inputs = 768, max_outputs = 192;
constexpr std::int64_t weight_parts_per_thread = 2;

std::int64_t parts_of(std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; }

// How many inputs and outputs a part has, in whole panels and tiles: enough parts for all threads, and none
// so narrow that packing its inputs is most of its work.
struct PartExtents {
  PartExtents(const Target& target, std::int64_t all_inputs, std::int64_t all_outputs) {
    const std::int64_t wanted = static_cast<std::int64_t>(threads::concurrency()) * weight_parts_per_thread;
    std::int64_t across = parts_of(all_inputs, max_inputs);
    while (all_outputs / parts_of(wanted, across) < all_inputs / across / 4) across *= 2;
    inputs = std::min(all_inputs, in_whole(target.panel_rows, parts_of(all_inputs, across)));
    outputs =
        std::min(max_outputs, in_whole(target.tile_columns, parts_of(all_outputs, parts_of(wanted, across))));
  }

  std::int64_t inputs, outputs;

 private:
  static std::int64_t in_whole(std::int64_t unit, std::int64_t n) { return parts_of(n, unit) * unit; }
};

// How many numbers of a token's row lie together: those of a head, or of all where heads follow each other.
std::int64_t run_of(const View& x) {
  const bool follow = x.stride.heads == x.shape.dim * x.stride.dim;
  return follow ? x.shape.heads * x.shape.dim : x.shape.dim;
}

}  // namespace

void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias) {
  const Target& target = best_target();
  const std::int64_t outputs = w.shape.length, inputs = w.shape.dim;
  const PartExtents part(target, inputs, outputs);
  const WeightGradientCall g{.x = lower(x),
                             .y = lower(y),
                             .x_dim = run_of(x),
                             .y_dim = run_of(y),
                             .length = x.shape.length,
                             .tokens = x.shape.batch * x.shape.length,
                             .inputs = inputs,
                             .outputs = outputs,
                             .w = static_cast<float*>(w.data),
                             .bias = static_cast<float*>(bias.data),
                             .max_inputs = part.inputs,
                             .max_outputs = part.outputs};
  if (g.tokens == 0) return;
  const std::int64_t across = parts_of(inputs, g.max_inputs),
                     parts = across * parts_of(outputs, g.max_outputs);
  threads::Scratch scratch(std::min(static_cast<std::size_t>(parts), threads::concurrency()),
                           target.weight_gradient_floats(g));
  const double multiplications =
      static_cast<double>(g.tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
  share_out(parts, multiplications, [&](std::int64_t n) {
    const std::int64_t input = n % across * g.max_inputs, output = n / across * g.max_outputs;
    const threads::Scratch::Lease lease(scratch);
    target.weight_gradient(g,
                           {.first_input = input,
                            .inputs = std::min(g.max_inputs, inputs - input),
                            .first_output = output,
                            .outputs = std::min(g.max_outputs, outputs - output)},
                           lease.floats());
  });
}

}  // namespace heed::cpu
