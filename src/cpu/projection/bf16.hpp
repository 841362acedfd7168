// SPDX-License-Identifier: Apache-2.0
// y = x * W^T + b as in projection.hpp, where x and W are bf16, by matrix instructions. Each output is one
// chain over the inputs in f32, in the order of the instructions, whatever the number of rows (O3).
#pragma once
#include <concepts>
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/projection/projection.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/product.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// A panel of weights, (depth / together, outputs, together), times tiles of rows of x.
struct Bf16Panel {
  const std::uint16_t *w, *x;
  std::int64_t depth;     // inputs of this stretch
  std::int64_t row_step;  // halves from one row of x to the next, a share of a tile where they lie together
  std::int64_t rows;
};

template <class O>
concept ProjectsBf16 = std::constructible_from<O, std::int64_t> &&  // for a number of rows
                       (max_rows_of_part % O::tile_rows == 0) && (O::depth_step % O::together == 0) &&
                       requires(const std::uint16_t* rows, std::uint16_t* tile, std::int64_t n, float* sums) {
                         // Halves of a tile from one input to the next; 1: tiles are rows side by side.
                         { O::input_step } -> std::convertible_to<int>;
                         // A tile from its rows, n halves each.
                         O::pack(rows, n, tile);
                         // sums(rows, outputs) = or += their product.
                         O::template multiply<Start::zero>(Bf16Panel{}, sums);
                         O::template multiply<Start::sum>(Bf16Panel{}, sums);
                       };

template <ProjectsBf16 O>
class ProjectBf16 {
  using Half = std::uint16_t;
  static constexpr int outputs = O::outputs, tile_rows = O::tile_rows;
  // Inputs of a panel that stay in the first-level cache while the rows of x pass by. The sums wait in memory
  // between stretches, which changes no bit.
  static constexpr std::int64_t stretch = 16384 / outputs / O::depth_step * O::depth_step;

  struct Parts {
    Half *x, *row_copies;
    float* sums;

    Parts(const Linear& t, Cutter& memory)
        : x(memory.cut_halves(rows_of_part(t) * row_step(t))),
          row_copies(memory.cut_halves(O::input_step == 1 ? 0 : tile_rows * t.depth)),
          sums(memory.cut(rows_of_part(t) * outputs)) {}
    static std::int64_t rows_of_part(const Linear& t) { return round_up(t.rows_of_part, tile_rows); }
    // Rows side by side lie no power of two apart: else those of a tile would share a few places of the
    // first-level cache.
    static std::int64_t row_step(const Linear& t) {
      return t.depth + (O::input_step == 1 ? O::depth_step : 0);
    }
  };

 public:
  static std::int64_t scratch_floats(const Linear& t) {
    Cutter nothing{nullptr};
    const Parts measured(t, nothing);
    return nothing.floats;
  }

  ProjectBf16(const Linear& linear, float* memory) : ProjectBf16(linear, Cutter{memory}) {}

  void run(const LinearPart& part) {
    [[maybe_unused]] const O instructions(part.rows);  // what they need while they run
    // The last tile has rows that nobody asks for: whatever they are, they change no other.
    for (std::int64_t r = 0; r < part.rows; r += tile_rows) {
      Half *tile = at.x + r * Parts::row_step(t), *rows = O::input_step == 1 ? tile : at.row_copies;
      for (std::int64_t n = 0; n < min(tile_rows, part.rows - r); ++n)
        copy_row(part.first_row + r + n, rows + n * Parts::row_step(t));
      if (rows != tile) O::pack(rows, t.depth, tile);
    }
    rows_of.for_each_map(part, [&](const LinearMap& map, std::int64_t first, std::int64_t end) {
      for (std::int64_t panel = first; panel < end; ++panel)
        for (std::int64_t k = 0; k < t.depth; k += stretch)
          for (std::int64_t r = 0; r < part.rows; r += tile_rows)
            multiply(map, panel, k, r, min(tile_rows, part.rows - r));
    });
  }

 private:
  ProjectBf16(const Linear& linear, Cutter memory) : t(linear), rows_of(linear), at(linear, memory) {}

  // Its heads side by side, and zeros.
  void copy_row(std::int64_t row, Half* to) const {
    for (std::int64_t h = 0; h < t.x_heads; ++h, to += t.x_dim) {
      const Row from = rows_of.at(t.x, row, h);
      const Half* x = static_cast<const Half*>(from.data) + from.first;
      if (from.step == 1)
        __builtin_memcpy(to, x, static_cast<std::size_t>(t.x_dim) * sizeof(Half));
      else
        for (std::int64_t d = 0; d < t.x_dim; ++d) to[d] = x[d * from.step];
    }
    for (std::int64_t d = t.x_heads * t.x_dim; d < t.depth; ++d) *to++ = 0;
  }

  // One tile by a stretch of a panel, from input k on. It is written as soon as it is whole: from the
  // first-level cache, and y's lines arrive while the next one is multiplied.
  void multiply(const LinearMap& map, std::int64_t panel, std::int64_t k, std::int64_t row,
                std::int64_t rows) {
    const Half *w = static_cast<const Half*>(map.panels) + (panel * t.depth + k) * outputs,
               *x = at.x + row * Parts::row_step(t) + k * O::input_step;
    const Bf16Panel product{w, x, min(stretch, t.depth - k), Parts::row_step(t), rows};
    float* sums = at.sums + row * outputs;
    if (k == 0)
      O::template multiply<Start::zero>(product, sums);
    else
      O::template multiply<Start::sum>(product, sums);
    if (k + product.depth == t.depth) rows_of.write(panel, row, tile_rows, sums);
  }

  const Linear& t;
  ProjectedRows<outputs> rows_of;
  Parts at;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
