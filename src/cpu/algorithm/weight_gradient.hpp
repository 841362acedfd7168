// SPDX-License-Identifier: Apache-2.0
// What the matrix of a projection gains, w(out, in) += sum over tokens of y(token, out) * x(token, in), and
// its bias, the sum of y. Tokens run in blocks of one length from the first, each block is a chain, and
// blocks are added in order, so that the cut into parts and the vector's width change no bit (O1, O2).
#pragma once
#include <cstdint>

#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/range.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"
#include "cpu/weight_gradient_call.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class WeightGradient {
  static constexpr int lanes = Tile<S>::rows;       // inputs
  static constexpr int columns = Tile<S>::columns;  // outputs
  static constexpr std::int64_t block = gradient_tokens;
  static_assert(block % 2 == 0);

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
      add_block(first, least(block, g.tokens - first));
    write();
  }

 private:
  WeightGradient(Cutter& memory, const WeightGradientCall& call, const WeightPart& task)
      : g(call), part(task) {
    const std::int64_t outputs = round_up(g.most_outputs, columns), inputs = round_up(g.most_inputs, lanes);
    x = memory.cut(block * inputs);
    y = memory.cut(block * outputs);
    sums = memory.cut(outputs * inputs);
    bias_sums = memory.cut(outputs);
    line = memory.cut(most(outputs, inputs));
  }

  std::int64_t panels() const { return (part.inputs + lanes - 1) / lanes; }
  std::int64_t tiles() const { return (part.outputs + columns - 1) / columns; }

  void add_block(std::int64_t first, std::int64_t count) {
    const std::int64_t depth = round_up(count, 2);
    for (std::int64_t n = 0; n < depth; ++n) {
      const bool is_token = n < count;
      place<lanes>(is_token && read_x(first + n), part.inputs, n, x);
      place<columns>(is_token && read_y(first + n), part.outputs, n, y);
    }
    for (std::int64_t p = 0; p < panels(); ++p)
      for (std::int64_t t = 0; t < tiles(); ++t)
        tile_product<S, Start::apart>(x + p * block * lanes, y + t * block * columns, depth,
                                      sums + (t * panels() + p) * columns * lanes);
    if (part.has_bias()) add_to_bias(depth);
  }

  // Numbers [first, first + count) of a token's row, which is the concatenation of its heads.
  void read_stretch(const Tensor& from, std::int64_t dim, std::int64_t token, std::int64_t first,
                    std::int64_t count) {
    for (std::int64_t d = 0; d < count;) {
      const std::int64_t head = (first + d) / dim, within = (first + d) % dim,
                         n = least(dim - within, count - d);
      const Row whole = row_of(from, token / g.length, head, token % g.length);
      widen_into<S>(line + d, {whole.data, whole.first + within * whole.step, whole.step, whole.type}, n);
      d += n;
    }
  }

  // Into `line`; false where nothing of the token counts. What is no number is let through only by a token
  // that has a gradient: of others x is not read (G10).
  bool read_x(std::int64_t token) {
    read_stretch(g.x, g.x_dim, token, part.first_input, part.inputs);
    return all_finite<S>(line, part.inputs) || has_gradient(token);
  }
  bool read_y(std::int64_t token) {
    read_stretch(g.y, g.y_dim, token, part.first_output, part.outputs);
    return true;
  }
  bool has_gradient(std::int64_t token) const {
    for (std::int64_t o = 0; o < g.outputs; ++o)
      if (read(row_of(g.y, token / g.length, o / g.y_dim, token % g.length), o % g.y_dim) != 0) return true;
    return false;
  }

  // The line as row n of every panel or tile, zeros after it and where there is none.
  template <int width>
  void place(bool is_there, std::int64_t count, std::int64_t n, float* to) const {
    for (std::int64_t d = 0; d < count; d += width, to += block * width) {
      float* const into = to + n * width;
      const std::int64_t real = is_there ? least(width, count - d) : 0;
      if (real == width)
        __builtin_memcpy(into, line + d, width * sizeof(float));
      else
        for (std::int64_t i = 0; i < width; ++i) into[i] = i < real ? line[d + i] : 0.0f;
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

  void write() const {
    for (std::int64_t o = 0; o < part.outputs; ++o) {
      float* const row = g.w + (part.first_output + o) * g.inputs + part.first_input;
      for (std::int64_t i = 0; i < part.inputs; ++i)
        row[i] += sums[((o / columns * panels() + i / lanes) * columns + o % columns) * lanes + i % lanes];
      if (g.bias && part.has_bias()) g.bias[part.first_output + o] += bias_sums[o];
    }
  }

  const WeightGradientCall& g;
  const WeightPart part;
  float *x, *y, *sums, *bias_sums, *line;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
