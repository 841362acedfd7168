// SPDX-License-Identifier: Apache-2.0
#include "cpu/projection.hpp"

#include <algorithm>

#include "cpu/run.hpp"
#include "cpu/threads/pool.hpp"
#include "cpu/threads/scratch.hpp"
#include "heed/half.hpp"

namespace heed::cpu {
namespace {

constexpr std::int64_t panels_per_block = 8;
// A stretch of the summed index short enough that a weight tile stays in the first-level cache while the
// panels pass by. The sums wait in memory between stretches, which changes no bit.
constexpr std::int64_t depth_per_stretch = 512;
constexpr std::int64_t tiles_per_task = 32;

// Row t of a batch of sequences whose heads lie side by side: element n is (n / dim, n % dim).
struct RowWalk {
  const Shape &shape, &stride;

  std::int64_t first(std::int64_t row) const {
    return row / shape.length * stride.batch + row % shape.length * stride.length;
  }
};

float load(const View& x, std::int64_t e) {
  if (x.dtype == DType::f16) return to_float(static_cast<const f16*>(x.data)[e]);
  if (x.dtype == DType::bf16) return to_float(static_cast<const bf16*>(x.data)[e]);
  return static_cast<const float*>(x.data)[e];
}

void store(const MutableView& y, std::int64_t e, float value) {
  if (y.dtype == DType::f16)
    static_cast<f16*>(y.data)[e] = from_float<f16>(value);
  else if (y.dtype == DType::bf16)
    static_cast<bf16*>(y.data)[e] = from_float<bf16>(value);
  else
    static_cast<float*>(y.data)[e] = value;
}

class Task {
 public:
  Task(const PackedWeights& weights, std::span<const float> bias, const View& x, const MutableView& y)
      : w_(weights),
        bias_(bias),
        x_(x),
        y_(y),
        rows_(weights.target->panel_rows),
        columns_(weights.target->tile_columns) {}

  std::int64_t floats() const { return panels_per_block * rows_ * (w_.depth + columns_); }

  // Rows [first, first + count) of y, its column tiles [begin, end).
  void run(std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t end,
           float* scratch) const {
    const std::int64_t panels = (count + rows_ - 1) / rows_;
    float* sums = scratch + panels * rows_ * w_.depth;
    pack(first, count, scratch);
    for (std::int64_t tile = begin; tile < end; ++tile) {
      std::fill_n(sums, panels * rows_ * columns_, 0.0f);
      const float* w = w_.tiles.data() + tile * columns_ * w_.depth;
      for (std::int64_t k = 0; k < w_.depth; k += depth_per_stretch)
        for (std::int64_t p = 0; p < panels; ++p)
          w_.target->tile_product(scratch + (p * w_.depth + k) * rows_, w + k * columns_,
                                  std::min(depth_per_stretch, w_.depth - k), sums + p * rows_ * columns_);
      write(first, count, tile, sums);
    }
  }

 private:
  void pack(std::int64_t first, std::int64_t count, float* panels) const {
    const RowWalk walk{x_.shape, x_.stride};
    std::fill_n(panels, (count + rows_ - 1) / rows_ * rows_ * w_.depth, 0.0f);
    for (std::int64_t r = 0; r < count; ++r) {
      float* column = panels + r / rows_ * rows_ * w_.depth + r % rows_;
      for (std::int64_t h = 0; h < x_.shape.heads; ++h) {
        const std::int64_t start = walk.first(first + r) + h * x_.stride.heads;
        for (std::int64_t d = 0; d < x_.shape.dim; ++d, column += rows_)
          *column = load(x_, start + d * x_.stride.dim);
      }
    }
  }

  void write(std::int64_t first, std::int64_t count, std::int64_t tile, const float* sums) const {
    const RowWalk walk{y_.shape, y_.stride};
    const std::int64_t real = std::min(columns_, w_.out - tile * columns_);
    for (std::int64_t n = 0; n < real; ++n) {
      const std::int64_t column = tile * columns_ + n;
      const std::int64_t place =
          column / y_.shape.dim * y_.stride.heads + column % y_.shape.dim * y_.stride.dim;
      const float b = bias_.empty() ? 0.0f : bias_[static_cast<std::size_t>(column)];
      for (std::int64_t r = 0; r < count; ++r)
        store(y_, walk.first(first + r) + place, sums[(r / rows_ * columns_ + n) * rows_ + r % rows_] + b);
    }
  }

  const PackedWeights& w_;
  std::span<const float> bias_;
  const View& x_;
  const MutableView& y_;
  std::int64_t rows_, columns_;
};

}  // namespace

PackedWeights::PackedWeights(std::span<const float> w, std::int64_t out_dim, std::int64_t in_dim)
    : target(&best_target()), out(out_dim), in(in_dim), depth((in_dim + 1) / 2 * 2) {
  const std::int64_t columns = target->tile_columns;
  tiles.resize(static_cast<std::size_t>((out + columns - 1) / columns * columns * depth));
  for (std::int64_t n = 0; n < out; ++n) {
    float* column = tiles.data() + n / columns * columns * depth + n % columns;
    for (std::int64_t k = 0; k < in; ++k) column[k * columns] = w[static_cast<std::size_t>(n * in + k)];
  }
}

void project(const PackedWeights& weights, std::span<const float> bias, const View& x, const MutableView& y) {
  const std::int64_t rows = x.shape.batch * x.shape.length;
  if (rows == 0 || weights.out == 0) return;
  const std::int64_t columns = weights.target->tile_columns, tiles = (weights.out + columns - 1) / columns;
  const std::int64_t rows_per_task = std::min(rows, panels_per_block * weights.target->panel_rows);
  const std::int64_t row_parts = (rows + rows_per_task - 1) / rows_per_task;
  const std::int64_t tile_parts = (tiles + tiles_per_task - 1) / tiles_per_task;
  const Task task(weights, bias, x, y);
  const auto parts = static_cast<std::size_t>(row_parts * tile_parts);
  Scratch scratch(std::min(parts, concurrency()), task.floats());
  parallel_for(parts, [&](std::size_t n) {
    const auto part = static_cast<std::int64_t>(n);
    const std::int64_t first = part / tile_parts * rows_per_task, begin = part % tile_parts * tiles_per_task;
    const Scratch::Lease lease(scratch);
    task.run(first, std::min(rows_per_task, rows - first), begin, std::min(begin + tiles_per_task, tiles),
             lease.floats());
  });
}

}  // namespace heed::cpu
