// SPDX-License-Identifier: Apache-2.0
// The gradient of the matrix of a projection, w(out, in) += sum over tokens of y(token, out) * x(token, in),
// and of its bias, the sum of y; y is the gradient of the projection's result. Blocks of tokens have one
// length from the first token on. Each block is a chain, and blocks are added in order, so that the cut into
// parts and the width of a vector change no bit (O1, O2).
#pragma once
#include <cstdint>

#include "cpu/backward/call.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class WeightGradient {
  static constexpr int lanes = Tile<S>::rows;       // inputs
  static constexpr int columns = Tile<S>::columns;  // outputs
  static constexpr std::int64_t block = gradient_tokens;
  // Tokens that are packed at once: one by one, every panel's line would leave the first-level cache before
  // the next token writes to it. The backward pass of a layer of 768 dimensions takes 466 ms instead of 475
  // (Neoverse-N1, November 2026).
  static constexpr int together = 8;
  static_assert(block % together == 0 && together % 2 == 0);

 public:
  static std::int64_t scratch_floats(const WeightGradientCall& g) {
    Cutter nothing{nullptr};
    const WeightGradient sized(nothing, g, {});
    return nothing.floats;
  }

  WeightGradient(const WeightGradientCall& call, const WeightPart& task, Cutter memory)
      : WeightGradient(memory, call, task) {}

  void run() {
    fill(sums, tiles() * panels() * columns * lanes, 0.0f);
    fill(bias_sums, tiles() * columns, 0.0f);
    for (std::int64_t first = 0; first < g.tokens; first += block)
      add_block(first, min(block, g.tokens - first));
    write();
  }

 private:
  WeightGradient(Cutter& memory, const WeightGradientCall& call, const WeightPart& task)
      : g(call), part(task) {
    const std::int64_t outputs = round_up(g.max_outputs, columns), inputs = round_up(g.max_inputs, lanes);
    x = memory.cut(block * inputs);
    y = memory.cut(block * outputs);
    sums = memory.cut(outputs * inputs);
    bias_sums = memory.cut(outputs);
    width = max(outputs, inputs);
    lines = memory.cut(together * width);
  }

  std::int64_t panels() const { return (part.inputs + lanes - 1) / lanes; }
  std::int64_t tiles() const { return (part.outputs + columns - 1) / columns; }

  void add_block(std::int64_t first, std::int64_t count) {
    const std::int64_t depth = round_up(count, 2);
    for (std::int64_t n = 0; n < depth; n += together) {
      const float* found[together];
      for (std::int64_t i = 0; i < together; ++i)
        found[i] = n + i < count ? x_of(first + n + i, lines + i * width) : nullptr;
      place<lanes>(found, part.inputs, n, x);
      for (std::int64_t i = 0; i < together; ++i)
        found[i] = n + i < count ? y_of(first + n + i, lines + i * width) : nullptr;
      place<columns>(found, part.outputs, n, y);
    }
    for (std::int64_t p = 0; p < panels(); ++p)
      for (std::int64_t t = 0; t < tiles(); ++t) {
        float* const sum = sums + (p * tiles() + t) * columns * lanes;
        prefetch_sums(sum);
        // fault: weight-gradient-of-the-last-block
        tile_product<S, Start::apart>(x + p * block * lanes, y + t * block * columns, depth, sum);
      }
    if (part.has_bias()) add_to_bias(depth);
  }

  // The sums of all panels leave the second-level cache from block to block: they are prefetched during the
  // product that is added to them. The gradient of 768 x 768 over 2048 tokens takes 67 ms instead of 70
  // (Neoverse-N1, one core, November 2026).
  static void prefetch_sums(const float* sum) {
    constexpr int line = 64 / sizeof(float);
    for (int n = 0; n < columns * lanes; n += line) __builtin_prefetch(sum + n, 1, 3);
  }

  // Numbers [begin, end) of a token's row, which is the concatenation of its heads: where they lie, or in
  // `line`.
  struct Stretch {
    const Tensor& from;
    std::int64_t dim, begin, end;
  };
  const float* stretch(const Stretch& t, std::int64_t token, float* line) const {
    for (std::int64_t d = t.begin; d < t.end;) {
      const std::int64_t within = d % t.dim, n = min(t.dim - within, t.end - d);
      const Row whole = row_of(t.from, token / g.length, d / t.dim, token % g.length),
                row{whole.data, whole.first + within * whole.step, whole.step, whole.type};
      if (n == t.end - t.begin) return widen<S>(row, n, line);
      widen_into<S>(line + (d - t.begin), row, n);
      d += n;
    }
    return line;
  }

  // Null where the token does not count: NaN and infinities of a token whose gradient is 0 are not read
  // (G10).
  const float* x_of(std::int64_t token, float* line) const {
    const float* found =
        stretch({g.x, g.x_dim, part.first_input, part.first_input + part.inputs}, token, line);
    // fault: weight-gradient-of-padding
    return all_finite<S>(found, part.inputs) || has_gradient(token) ? found : nullptr;
  }
  const float* y_of(std::int64_t token, float* line) const {
    return stretch({g.y, g.y_dim, part.first_output, part.first_output + part.outputs}, token, line);
  }
  bool has_gradient(std::int64_t token) const {
    for (std::int64_t o = 0; o < g.outputs; ++o)
      if (read(row_of(g.y, token / g.length, o / g.y_dim, token % g.length), o % g.y_dim) != 0) return true;
    return false;
  }

  // Copies rows that were found to rows n and on of every panel or tile; zeros fill up the last, and stand
  // for a row that is null.
  template <int columns_of>
  static void place(const float* const (&found)[together], std::int64_t count, std::int64_t n, float* to) {
    for (std::int64_t d = 0; d < count; d += columns_of, to += block * columns_of) {
      float* into = to + n * columns_of;
      for (const float* row : found) {
        const std::int64_t real = row ? min(columns_of, count - d) : 0;
        if (real == columns_of) {
          __builtin_memcpy(into, row + d, columns_of * sizeof(float));
        } else {
          for (std::int64_t i = 0; i < real; ++i) into[i] = row[d + i];  // fault: weight-gradient-tail
          for (std::int64_t i = real; i < columns_of; ++i) into[i] = 0;
        }
        into += columns_of;
      }
    }
  }

  void add_to_bias(std::int64_t depth) {
    for (std::int64_t t = 0; t < tiles(); ++t) {
      float sum[columns] = {};
      const float* from = y + t * block * columns;
      for (std::int64_t n = 0; n < depth; ++n, from += columns)
        for (int i = 0; i < columns; ++i) sum[i] += from[i];
      for (int i = 0; i < columns; ++i) bias_sums[t * columns + i] += sum[i];
    }
  }

  // Sums are (panels, outputs, lanes).
  void write() const {
    for (std::int64_t o = 0; o < part.outputs; ++o) {
      float* row = g.w + (part.first_output + o) * g.inputs + part.first_input;
      const float* sum = sums + o * lanes;
      for (std::int64_t d = 0; d < part.inputs; d += lanes, row += lanes, sum += tiles() * columns * lanes) {
        if (part.inputs - d >= lanes)
          for (int i = 0; i < lanes; i += S::lanes)
            S::store(row + i, S::add(S::load(row + i), S::load(sum + i)));
        else
          for (std::int64_t i = 0; i < part.inputs - d; ++i) row[i] += sum[i];
      }
      if (g.bias && part.has_bias()) g.bias[part.first_output + o] += bias_sums[o];
    }
  }

  const WeightGradientCall& g;
  const WeightPart part;
  std::int64_t width;  // of a line
  float *x, *y, *sums, *bias_sums, *lines;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
