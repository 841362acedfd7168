// SPDX-License-Identifier: Apache-2.0
// What the kernels of a projection read, and how they cut it into tiles.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// Rows of tokens, each the concatenation of its heads: row n is token n % length of batch entry n / length.
struct TokenRows {
  Tensor tensor;
  std::int64_t dim, length;  // of a head; of a batch entry
};

// y = x * w^T + bias
struct LinearMap {
  TokenRows x, y;
  std::int64_t rows;
  const void* w;  // (out, in)
  Type w_type;
  std::int64_t w_row, w_step;  // elements from one output to the next, and from one input
  std::int64_t in, out;
  const float* bias;  // or null
  bool y_has_pairs = false;
};
// Of one x, by one launch.
struct LinearMaps {
  static constexpr int max = 3;
  LinearMap map[max];
  int count;
  float* chains;  // room for those of each map by itself (chain_floats())
};

// w += y^T * x, bias += the sum of all rows of y
struct WeightGradient {
  TokenRows x, y;
  std::int64_t rows, in, out;
  float* w;     // (out, in), row after row
  float* bias;  // or null
};

// Whether the numbers of a row lie side by side, each eight on 16 bytes: matrix units read no others.
inline bool has_pieces(const TokenRows& t, std::int64_t width) {
  const TensorStrides& s = t.tensor.stride;
  return (t.dim == width || s.heads == t.dim) && s.dim == 1 && width % 8 == 0 && s.batch % 8 == 0 &&
         s.length % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.tensor.data) % 16 == 0;
}
// Whether each two lie on 4 bytes, within their heads: matrix units write them at once.
inline bool has_pairs(const TokenRows& t, std::int64_t width) {
  const TensorStrides& s = t.tensor.stride;
  return (t.dim == width || s.heads % 2 == 0) && s.dim == 1 && t.dim % 2 == 0 && s.batch % 2 == 0 &&
         s.length % 2 == 0 && reinterpret_cast<std::uintptr_t>(t.tensor.data) % 4 == 0;
}

constexpr std::int64_t tiles_of(std::int64_t n, int tile) { return (n + tile - 1) / tile; }

// How a block of matrix units makes `outs` x `rows` sums: so many warps side by side, of tiles of 16 outputs
// and of 8 rows each, and so many stages of panels in shared memory.
template <int out_warps, int row_warps, int warp_out_tiles, int warp_row_tiles, int stage_panels,
          int stage_count>
struct MatrixShape {
  static constexpr int warps_along_outs = out_warps, out_tiles = warp_out_tiles, row_tiles = warp_row_tiles;
  static constexpr int outs = out_warps * out_tiles * 16, rows = row_warps * row_tiles * 8,
                       threads = 32 * out_warps * row_warps;
  static constexpr int panels = stage_panels, stages = stage_count, panel_inputs = 32,
                       inputs = panels * panel_inputs;
  // A line more, so that neighbouring panels begin in other banks.
  static constexpr int line_bytes = 2 * panel_inputs, panel_bytes = (outs + rows + 1) * line_bytes,
                       stage_bytes = panels * panel_bytes, shared_bytes = stages * stage_bytes;
  // Of eight inputs of a line, in a stage.
  static constexpr int place_of(int line, int piece) {
    return piece / 4 * panel_bytes + line * line_bytes + piece % 4 * 16;
  }
};
// For up to 8 rows, up to 32, more, and so many that their tiles fill the device.
using FewRowsShape = MatrixShape<2, 1, 1, 1, 8, 4>;
using SomeRowsShape = MatrixShape<2, 1, 1, 4, 4, 4>;
using ManyRowsShape = MatrixShape<2, 2, 2, 4, 2, 4>;
using AllRowsShape = MatrixShape<2, 2, 4, 8, 1, 4>;

// The same on Hopper, by warpgroups of 64 outputs each. Lines are 64 inputs long, in the swizzle of 128
// bytes.
template <int groups_of_64_outs, int row_count, int stage_panels, int stage_count>
struct HopperMatrixShape {
  static constexpr int outs = 64 * groups_of_64_outs, rows = row_count, threads = 128 * groups_of_64_outs;
  static constexpr int panels = stage_panels, stages = stage_count, panel_inputs = 64,
                       inputs = panels * panel_inputs;
  static constexpr int line_bytes = 2 * panel_inputs, panel_bytes = (outs + rows) * line_bytes,
                       stage_bytes = panels * panel_bytes,
                       shared_bytes = 1024 + stages * stage_bytes;  // 1024: to align by hand
  static constexpr int place_of(int line, int piece) {
    return piece / 8 * panel_bytes + line * line_bytes + (piece % 8 ^ line % 8) * 16;
  }
};
// 4096 x 4096 x 4096 take 323 us by the last one, 423 by tiles of 128 outputs x 256 rows, which leave room
// for four stages; 1 x 4096 x 4096 19 us (H200, November 2026).
using FewRowsOnHopper = HopperMatrixShape<1, 32, 2, 8>;
using SomeRowsOnHopper = HopperMatrixShape<1, 64, 2, 5>;
using ManyRowsOnHopper = HopperMatrixShape<2, 128, 1, 6>;

template <class Shape>
constexpr std::int64_t tiles_of(const LinearMap& m) {
  return tiles_of(m.rows, Shape::rows) * tiles_of(m.out, Shape::outs);
}
template <class Shape>
constexpr std::int64_t tiles_of(const LinearMaps& maps) {
  std::int64_t tiles = 0;
  for (int n = 0; n < maps.count; ++n) tiles += tiles_of<Shape>(maps.map[n]);
  return tiles;
}
constexpr bool is_for_matrix_units(Type w, Type x) { return w == x && (w == Type::bf16 || w == Type::f16); }

// In f32, few rows: a warp has some outputs of some rows, and each of its lanes a chain of inputs.
constexpr int few_outs = 4, few_rows = 8, few_warps = 4;
constexpr std::int64_t few_blocks(const LinearMap& m) {
  return tiles_of(m.rows, few_rows) * tiles_of(m.out, few_outs * few_warps);
}

// In f32, more rows: squares of 4 x 4 sums that a thread has along each side of a block's tile.
template <int squares_along_a_side>
struct SquaresShape {
  static constexpr int squares = squares_along_a_side, side = 4 * squares;
  static constexpr int threads = 256, tile = 64 * squares, depth = 16;
};
// Where large tiles fill the device, and where they do not. Where small ones do not either, a block has one
// chain of inputs, and chains are added by another launch.
using SmallSquares = SquaresShape<1>;
using LargeSquares = SquaresShape<2>;

// A block for every tile of y, and of w.
template <class Shape>
constexpr std::int64_t blocks_of(const LinearMap& m) {
  return tiles_of(m.rows, Shape::tile) * tiles_of(m.out, Shape::tile);
}
constexpr std::int64_t chains_of(const LinearMap& m) { return tiles_of(m.in, chain_terms); }
// Floats of all chains, before they are added: (chains, rows, out).
constexpr std::int64_t chain_floats(const LinearMap& m) { return chains_of(m) * m.rows * m.out; }
template <class Shape>
constexpr std::int64_t blocks_of(const WeightGradient& g) {
  return g.rows > 0 ? tiles_of(g.out, Shape::tile) * tiles_of(g.in, Shape::tile) : 0;
}

// What maps in f32, on a device of so many multiprocessors.
enum class InF32 : std::uint8_t { lanes, large_squares, small_squares, chains };
constexpr InF32 kernel_in_f32(const LinearMap& m, int multiprocessors) {
  if (m.rows <= few_rows) return InF32::lanes;
  if (blocks_of<LargeSquares>(m) >= multiprocessors) return InF32::large_squares;
  const bool is_full = blocks_of<SmallSquares>(m) >= multiprocessors;
  return is_full || chains_of(m) == 1 ? InF32::small_squares : InF32::chains;
}

void launch_on_hopper(const LinearMaps&, Stream);
// By matrix units where x and w are of one type of 16 bits; else in f32, with the bits of the CPU.
void launch(const LinearMaps&, Stream);
void launch(const WeightGradient&, Stream);

}  // namespace heed::cuda
