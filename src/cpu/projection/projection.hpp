// SPDX-License-Identifier: Apache-2.0
// y = x * W^T + b, for up to three W that read one x, over weights in panels of outputs: many rows of x by
// tiles, a few at the speed the weights arrive. Outputs lie on the lanes, so results are stored as they are.
// Weights are packed beforehand, or lie as the caller has them: then a stretch of a panel is packed just
// before it is used. Project does so in f32; ProjectBf16, where x and W are bf16, by matrix instructions.
#pragma once
#include <concepts>
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "heed/half.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The rows of x and y where they lie, the panels of weights that a task has of each W, and the way of a panel
// of outputs to y: the bias is added, and the sum is rounded once to y's type.
template <int outputs>
class ProjectedRows {
 public:
  explicit ProjectedRows(const Linear& linear) : t(linear) {}

  // Calls multiply(map, first, end) for each map, with those of its panels that the task has, [first, end).
  // Meanwhile write() writes to the y of that map.
  template <class Multiply>
  void for_each_map(const LinearPart& part, const Multiply& multiply) {
    std::int64_t first = part.first_panel, end = part.end_panel;
    for (std::int64_t n = 0; n < t.map_count; ++n) {
      const std::int64_t panels = (t.maps[n].out + outputs - 1) / outputs;
      if (first < panels && end > 0) {
        begin(t.maps[n], part);  // fault: one-y-for-all
        multiply(t.maps[n], max(first, 0), min(end, panels));
      }
      first -= panels;  // fault: panels-of-the-second-map
      end -= panels;
    }
  }

  Row at(const Tensor& tensor, std::int64_t row, std::int64_t head) const {
    return row_of(tensor, row / t.length, head, row % t.length);
  }

  // Writes values(rows, outputs) of one panel, for up to `max_rows` of the task's rows from row `first` on.
  // Outputs of one head lie together. Compiled once, not at every call.
  [[gnu::noinline]] void write(std::int64_t panel, std::int64_t first, std::int64_t max_rows,
                               const float* values) const {
    const std::int64_t begin = panel * outputs, end = min(begin + outputs, map->out);
    for (std::int64_t n = begin; n < end;) {
      const std::int64_t head = n / map->y_dim, next = min(end, (head + 1) * map->y_dim);
      const Tensor& y = map->y;
      write_stretch({.first_row = first,
                     .rows = min(max_rows, count - first),
                     .width = next - n,
                     .place = head * y.stride.heads + (n - head * map->y_dim) * y.stride.dim,
                     .values = values + n - begin,
                     .bias = map->bias ? map->bias + n : nullptr});
      n = next;
    }
  }

 private:
  void begin(const LinearMap& its, const LinearPart& part) {
    map = &its;
    count = part.rows;
    for (std::int64_t r = 0; r < count; ++r) first_of_row[r] = at(its.y, part.first_row + r, 0).first;
  }

  // Outputs of some rows that lie in one head, `place` elements beyond the first of the row.
  struct Stretch {
    std::int64_t first_row, rows, width, place;
    const float *values, *bias;
  };

  void write_stretch(const Stretch& of) const {
    const Tensor& y = map->y;
    void* const data = const_cast<void*>(y.data);
    if (y.stride.dim != 1)
      for (std::int64_t r = 0; r < of.rows; ++r) {
        const Row row{y.data, first_of_row[of.first_row + r] + of.place, y.stride.dim, y.type};
        for (std::int64_t i = 0; i < of.width; ++i) cpu::HEED_THIS_TARGET::write(row, i, with_bias(of, r, i));
      }
    else if (y.type == Type::f32)
      write_rows(of, static_cast<float*>(data), [](float x) { return x; });
    else if (y.type == Type::bf16)
      write_rows(of, static_cast<std::uint16_t*>(data), [](float x) { return from_float<bf16>(x).bits; });
    else
      write_rows(of, static_cast<std::uint16_t*>(data), [](float x) { return from_float<f16>(x).bits; });
  }

  static float with_bias(const Stretch& of, std::int64_t r, std::int64_t i) {
    const float x = of.values[r * outputs + i];
    return of.bias ? x + of.bias[i] : x;
  }

  // A few at a time in local arrays, which nothing that is written can change: so compilers use vectors.
  template <class T, class Round>
  void write_rows(const Stretch& of, T* y, const Round& round) const {
    constexpr int together = outputs % 32 == 0 ? 32 : outputs % 16 == 0 ? 16 : outputs % 8 == 0 ? 8 : 4;
    for (std::int64_t r = 0; r < of.rows; ++r) {
      const float* const from = of.values + r * outputs;
      T* const to = y + first_of_row[of.first_row + r] + of.place;
      std::int64_t i = 0;
      for (; i + together <= of.width; i += together) {
        float x[together];
        T rounded[together];
        __builtin_memcpy(x, from + i, sizeof x);
        for (int n = 0; of.bias && n < together; ++n) x[n] += of.bias[i + n];
        for (int n = 0; n < together; ++n) rounded[n] = round(x[n]);
        __builtin_memcpy(to + i, rounded, sizeof rounded);
      }
      for (; i < of.width; ++i) to[i] = round(with_bias(of, r, i));
    }
  }

  const Linear& t;
  const LinearMap* map = nullptr;
  std::int64_t count = 0;
  // Of y, in elements. Found once: two divisions for each row and panel would show.
  std::int64_t first_of_row[max_rows_of_part];
};

constexpr std::int64_t max_single_rows = 4;

template <Vector S>
class Project {
  static constexpr int outputs = Tile<S>::rows;       // of a panel of weights
  static constexpr int tile_rows = Tile<S>::columns;  // rows of x that are multiplied together
  // The summed index is cut so that 24 KiB of a panel stay in the first-level cache while the tiles of x pass
  // by. The sums wait in memory between stretches, as they do between chains.
  static constexpr std::int64_t stretch = 6144 / outputs / chain_terms * chain_terms;
  static_assert(stretch >= chain_terms);

  // The scratch of a task.
  struct Parts {
    float *x, *sums;          // tiles of x; (rows, outputs)
    float *widened, *buffer;  // a stretch of two panels; four rows that are widened

    Parts(const Linear& t, Cutter& memory)
        : x(memory.cut(rows_of_part(t) * t.depth)),
          sums(memory.cut(rows_of_part(t) * outputs)),
          widened(memory.cut(2 * outputs * stretch)),
          buffer(memory.cut(4 * max(t.x_dim, min(stretch, t.depth)))) {}
    static std::int64_t rows_of_part(const Linear& t) { return round_up(t.rows_of_part, tile_rows); }
  };

 public:
  static std::int64_t scratch_floats(const Linear& t) {
    Cutter nothing{nullptr};
    const Parts measured(t, nothing);
    return nothing.floats;
  }

  Project(const Linear& linear, float* memory) : Project(linear, Cutter{memory}) {}

  void run(const LinearPart& part) {
    if (part.rows <= max_single_rows) return run_rows(part);
    tiles = (part.rows + tile_rows - 1) / tile_rows;
    for (std::int64_t n = 0; n < tiles; ++n)
      pack_tile(n, part.first_row + n * tile_rows, min(tile_rows, part.rows - n * tile_rows));
    rows_of.for_each_map(part, [&](const LinearMap& map, std::int64_t first, std::int64_t end) {
      for (std::int64_t panel = first; panel < end; ++panel) multiply(map, panel);
    });
  }

 private:
  Project(const Linear& linear, Cutter memory) : t(linear), rows_of(linear), at(linear, memory) {}

  // Where input k of tile n is: (stretches, tiles, stretch, tile_rows), so that what a stretch of weights
  // meets is read in order.
  float* tile_at(std::int64_t n, std::int64_t k) const {
    const std::int64_t first = k / stretch * stretch;
    return at.x + (first * tiles + n * min(stretch, t.depth - first) + k - first) * tile_rows;
  }

  // Head by head, so that a concatenation of heads is read where they lie.
  void pack_tile(std::int64_t n, std::int64_t first, std::int64_t count) {
    const std::int64_t in = t.x_heads * t.x_dim;
    for (std::int64_t k = 0, end; k < in; k = end) {
      const std::int64_t h = k / t.x_dim, d = k - h * t.x_dim;
      end = min((h + 1) * t.x_dim, (k / stretch + 1) * stretch);
      const auto row = [&](std::int64_t r) {
        const Row whole = rows_of.at(t.x, first + r, h);
        return Row{whole.data, whole.first + d * whole.step, whole.step, whole.type};
      };
      pack_rows<S>(row, {count, tile_rows, end - k, end == in ? t.depth - k : end - k}, at.buffer,
                   tile_at(n, k));
    }
  }

  // sums(rows of x, outputs) by one panel of weights. A tile is written as soon as it is whole: from the
  // first-level cache, and y's lines arrive while the next one is multiplied.
  void multiply(const LinearMap& map, std::int64_t panel) {
    for (std::int64_t k = 0; k < t.depth; k += stretch) {
      const std::int64_t depth = min(stretch, t.depth - k), first = (panel * t.depth + k) * outputs;
      const float* w = map.is_packed
                           ? widen<S>({map.panels, first, 1, map.panel_type}, depth * outputs, at.widened)
                           : packed_stretch(map, panel, k, depth, at.widened);
      for (std::int64_t n = 0; n < tiles; ++n) {
        const float* tile = tile_at(n, k);
        float* sum = at.sums + n * tile_rows * outputs;
        if (map.is_packed) prefetch_weights(map, first + depth * outputs, n);
        if (k == 0)
          chained_product<S, Start::zero>(w, tile, depth, sum);
        else
          chained_product<S, Start::apart>(w, tile, depth, sum);
        if (k + depth == t.depth) rows_of.write(panel, n * tile_rows, tile_rows, sum);
      }
    }
  }

  // Inputs [k, k + depth) of a panel of weights that lie as the caller has them.
  const float* packed_stretch(const LinearMap& map, std::int64_t panel, std::int64_t k, std::int64_t depth,
                              float* to) const {
    const std::int64_t first = panel * outputs, in = t.x_heads * t.x_dim;
    const auto row = [&](std::int64_t n) {
      const Row whole = row_of(map.rows, 0, 0, first + n);
      return Row{whole.data, whole.first + k * whole.step, whole.step, whole.type, 16 * whole.step};
    };
    pack_rows<S>(row, {min(outputs, map.out - first), outputs, min(depth, in - k), depth}, at.buffer, to);
    return to;
  }

  // The weights that follow are prefetched into the second-level cache while those before them are used: tile
  // n prefetches its share of a stretch.
  void prefetch_weights(const LinearMap& map, std::int64_t weight, std::int64_t n) const {
    constexpr std::int64_t line = 64;
    const std::int64_t bytes = map.panel_type == Type::f32 ? 4 : 2,
                       all = round_up(map.out, outputs) * t.depth * bytes;
    const std::int64_t lines = (outputs * stretch * bytes / line + tiles - 1) / tiles,
                       first = weight * bytes + n * lines * line;
    for (std::int64_t byte = first; byte < min(first + lines * line, all); byte += line)
      __builtin_prefetch(static_cast<const char*>(map.panels) + byte, 0, 2);
  }

  // A few rows: each weight is read once for all of them.
  void run_rows(const LinearPart& part) {
    for (std::int64_t r = 0; r < part.rows; ++r) {
      float* to = at.x + r * t.depth;
      for (std::int64_t h = 0; h < t.x_heads; ++h) {
        const float* from = widen<S>(rows_of.at(t.x, part.first_row + r, h), t.x_dim, at.buffer);
        for (std::int64_t d = 0; d < t.x_dim; ++d) to[h * t.x_dim + d] = from[d];
      }
      if (t.x_heads * t.x_dim < t.depth) to[t.depth - 1] = 0;
    }
    rows_of.for_each_map(part, [&](const LinearMap& map, std::int64_t first, std::int64_t end) {
      const auto run = [&](auto type) {
        if constexpr (type.value != Type::int8) run_panels<type.value>(map, part.rows, first, end);
      };
      with_type(map.is_packed ? map.panel_type : Type::f32, run);
    });
  }

  template <Type type>
  void run_panels(const LinearMap& map, std::int64_t rows, std::int64_t panel, std::int64_t end) {
    if (rows == 1)
      for (; panel + 2 <= end; panel += 2) few_rows<type, 2, 1>(map, panel);
    for (; panel < end; ++panel) {
      if (rows == 1) few_rows<type, 1, 1>(map, panel);
      if (rows == 2) few_rows<type, 1, 2>(map, panel);
      if (rows == 3) few_rows<type, 1, 3>(map, panel);
      if (rows == 4) few_rows<type, 1, 4>(map, panel);
    }
  }

  // One row takes two panels at a time, so that two streams of weights arrive side by side.
  template <Type type, int panels, int rows>
  void few_rows(const LinearMap& map, std::int64_t panel) {
    for (std::int64_t k = 0; k < t.depth; k += chain_terms) {
      const std::int64_t end = min(k + chain_terms, t.depth);
      if (map.is_packed) {
        add_chain<type, panels, rows>(map.panels, (panel * t.depth + k) * outputs, t.depth * outputs, k, end);
        continue;
      }
      for (int p = 0; p < panels; ++p)
        packed_stretch(map, panel + p, k, end - k, at.widened + p * chain_terms * outputs);
      add_chain<type, panels, rows>(at.widened, 0, chain_terms * outputs, k, end);
    }
    for (int p = 0; p < panels; ++p) rows_of.write(panel + p, 0, rows, at.sums + p * outputs);
  }

  // sums(rows, panels, outputs) over inputs [first, end), whose weights begin at element `begin` and, of
  // another panel, `panel_step` further: those of the first chain take their place. All loops but that over
  // the inputs are unrolled: g++ 12 stores each sum of an array that is indexed at run time in every step.
  // And inlined into those over panels and maps, it has 7 % more instructions.
  template <Type type, int panels, int rows>
  [[gnu::noinline]] void add_chain(const void* weights, std::int64_t begin, std::int64_t panel_step,
                                   std::int64_t first, std::int64_t end) {
    constexpr int vectors = S::panel_vectors, columns = panels * vectors;
    const std::int64_t depth = t.depth;
    const float* const xs = at.x;
    typename S::F sum[rows * columns];
#pragma GCC unroll 16
    for (int i = 0; i < rows * columns; ++i) sum[i] = S::fill(0.0f);
    const auto step = [&](std::int64_t k) {
#pragma GCC unroll 16
      for (int c = 0; c < columns; ++c) {
        const std::int64_t place =
            begin + c / vectors * panel_step + (k - first) * outputs + c % vectors * S::lanes;
        const auto weight = load_as<S, type>(weights, place);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
          sum[r * columns + c] = S::fma(weight, S::fill(xs[r * depth + k]), sum[r * columns + c]);
      }
    };
    std::int64_t k = first;
    // One row eight inputs at a time, so that the branch predictor foresees the end of a
    // chain: 0.61 ms instead of 0.90 for four matrices of 1024 x 1024 (Neoverse-N1, one core, November
    // 2026).
    if constexpr (rows == 1)
      for (; k + 8 <= end; k += 8)
#pragma GCC unroll 8
        for (int n = 0; n < 8; ++n) step(k + n);
    for (; k < end; ++k) step(k);
#pragma GCC unroll 16
    for (int i = 0; i < rows * columns; ++i) {
      float* const to = at.sums + i * S::lanes;
      S::store(to, first == 0 ? sum[i] : S::add(S::load(to), sum[i]));
    }
  }

  const Linear& t;
  ProjectedRows<outputs> rows_of;
  std::int64_t tiles = 0;  // of the present rows
  Parts at;
};

// By matrix instructions: each output is one chain over the inputs in f32, in the order of the instructions,
// whatever the number of rows (O3).

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
