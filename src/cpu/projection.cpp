// SPDX-License-Identifier: Apache-2.0
#include "cpu/projection.hpp"

#include <algorithm>

#include "cache/types.hpp"
#include "cpu/lower.hpp"
#include "cpu/run.hpp"
#include "threads/pool.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

constexpr std::int64_t panels_per_task = 8;
constexpr std::int64_t parts_per_thread = 4;

}  // namespace

PackedWeights::PackedWeights(const View& w)
    : target(&best_target()), out(w.shape.length), in(w.shape.dim), depth((in + 1) / 2 * 2), dtype(w.dtype) {
  const std::int64_t columns = target->tile_columns;
  tiles.resize(static_cast<std::size_t>((out + columns - 1) / columns * columns * depth) * bytes_of(dtype));
  const auto pack = [&]<class T>(const T* from, T* to) {
    for (std::int64_t n = 0; n < out; ++n, from += in) {
      T* column = to + n / columns * columns * depth + n % columns;
      for (std::int64_t k = 0; k < in; ++k) column[k * columns] = from[k];
    }
  };
  void* packed = tiles.data();
  if (dtype == DType::f32)
    pack(static_cast<const float*>(w.data), static_cast<float*>(packed));
  else
    pack(static_cast<const std::uint16_t*>(w.data), static_cast<std::uint16_t*>(packed));
}

void project(const PackedWeights& weights, std::span<const float> bias, const View& x, const MutableView& y) {
  const std::int64_t rows = x.shape.batch * x.shape.length;
  if (rows == 0 || weights.out == 0) return;
  const Target& target = *weights.target;
  const Linear linear{.x = lower(x),
                      .y = lower(y),
                      .x_heads = x.shape.heads,
                      .x_dim = x.shape.dim,
                      .y_dim = y.shape.dim,
                      .length = x.shape.length,
                      .tiles = weights.tiles.data(),
                      .tile_type = cache::type_of(weights.dtype),
                      .depth = weights.depth,
                      .out = weights.out,
                      .bias = bias.empty() ? nullptr : bias.data()};
  // Whole rows where there are enough of them, so that x is packed once; else the columns are shared out too.
  const std::int64_t columns = target.tile_columns, tiles = (weights.out + columns - 1) / columns;
  const std::int64_t panels = (rows + target.panel_rows - 1) / target.panel_rows;
  const std::int64_t row_parts = (panels + panels_per_task - 1) / panels_per_task;
  const auto wanted = static_cast<std::int64_t>(threads::concurrency()) * parts_per_thread;
  const std::int64_t tile_parts = std::clamp<std::int64_t>(wanted / row_parts, 1, (tiles + 1) / 2);
  const std::int64_t tiles_per_part = ((tiles + tile_parts - 1) / tile_parts + 1) / 2 * 2;
  const std::int64_t parts_across = (tiles + tiles_per_part - 1) / tiles_per_part;
  const auto parts = static_cast<std::size_t>(row_parts * parts_across);
  threads::Scratch scratch(std::min(parts, threads::concurrency()), target.project_floats(linear));
  threads::parallel_for(parts, [&](std::size_t n) {
    const auto part = static_cast<std::int64_t>(n);
    const std::int64_t across = part / parts_across, tile = part % parts_across * tiles_per_part;
    // Parts differ by a panel at most: 171 panels as 21 parts of eight and a rest would keep one thread of
    // two waiting.
    const std::int64_t row = across * panels / row_parts * target.panel_rows,
                       end = std::min(rows, (across + 1) * panels / row_parts * target.panel_rows);
    const threads::Scratch::Lease lease(scratch);
    target.project(linear,
                   {.first_row = row,
                    .rows = end - row,
                    .first_tile = tile,
                    .end_tile = std::min(tile + tiles_per_part, tiles)},
                   lease.floats());
  });
}

}  // namespace heed::cpu
