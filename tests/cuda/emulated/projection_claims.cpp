// SPDX-License-Identifier: Apache-2.0
// Projections and the gradients of their weights, on a CPU that emulates a GPU's threads: the bits of the
// CPU's own, over every edge of a tile and of a chain.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "cases/tensor.hpp"
#include "claims.hpp"
#include "cuda/lower.hpp"
#include "cuda/projection/few.cuh"
#include "cuda/projection/hopper.cuh"
#include "cuda/projection/matrix.cuh"
#include "cuda/projection/projection.cuh"
#include "emulated/fibers.hpp"

namespace heed::cuda::test {
namespace {

using cases::Tensor;
using claims::expect;

struct Case {
  std::int64_t batch, length, in_heads, in_dim, out_heads, out_dim;
  DType x, w, y;

  std::int64_t in() const { return in_heads * in_dim; }
  std::int64_t out() const { return out_heads * out_dim; }
  std::int64_t rows() const { return batch * length; }
};
// More than a tile of tokens, outputs and inputs; an odd width and more than one chain of inputs; more than a
// block of tokens; heads inside and outside the length.
const std::vector<Case> all_cases{{2, 37, 3, 11, 5, 13, DType::f32, DType::f32, DType::f32},
                                  {1, 5, 1, 530, 1, 3, DType::f32, DType::f16, DType::bf16},
                                  {3, 87, 2, 33, 1, 65, DType::f32, DType::f32, DType::f32},
                                  {1, 256, 1, 2, 2, 1, DType::bf16, DType::f32, DType::f16},
                                  {1, 1, 1, 1, 1, 1, DType::f32, DType::f32, DType::f32},
                                  {1, 140, 1, 148, 2, 68, DType::f32, DType::f32, DType::f32}};

std::string name_of(const Case& c) {
  return std::to_string(c.rows()) + " rows, " + std::to_string(c.in()) + " to " + std::to_string(c.out());
}

// Heads inside the length, with a gap after each row.
Tensor tokens(const Case& c, std::int64_t heads, std::int64_t dim, std::uint64_t seed, DType dtype) {
  const std::int64_t row = heads * dim + 3;
  return Tensor::random({c.batch, heads, c.length, dim}, seed, 1, dtype)
      .laid_out({c.length * row, dim, row, 1});
}

TokenRows rows_of(const View& x) { return {lower(x), x.shape.dim, x.shape.length}; }

template <template <class> class Tile, class Shape, class Call>
void run(const Call& call) {
  ProjectionMemory<Shape> memory;
  emulated::launch(blocks_of<Shape>(call), Shape::threads,
                   [&] { Tile<Shape>(call, memory, block_index()).run(); });
}

void run_chains(const LinearMap& map) {
  std::vector<float> chains(static_cast<std::size_t>(chain_floats(map)), NAN);
  ProjectionMemory<SmallSquares> memory;
  const std::int64_t tiles = blocks_of<SmallSquares>(map);
  emulated::launch(tiles * chains_of(map), SmallSquares::threads, [&] {
    const std::int64_t chain = block_index() / tiles;
    LinearMapTile<SmallSquares>(map, memory, block_index() % tiles).run_chain(chain, chains.data());
  });
  emulated::launch(map.rows * map.out, 1, [&] { ChainSum::run(map, chains.data(), block_index()); });
}

LinearMap map_of(const Case& c, const Tensor& x, const Tensor& w, Tensor& y, const std::vector<float>& bias) {
  return {.x = rows_of(x.view()),
          .y = rows_of(y.mutable_view()),
          .rows = c.rows(),
          .w = w.view().data,
          .w_type = problem::type_of(c.w),
          .w_row = w.view().stride.length,
          .w_step = w.view().stride.dim,
          .in = c.in(),
          .out = c.out(),
          .bias = bias.data(),
          .y_has_pairs = has_pairs(rows_of(y.view()), c.out())};
}

std::vector<float> floats_of(const Tensor& bias) {
  std::vector<float> floats;
  for (std::int64_t n = 0; n < bias.view().shape.dim; ++n) floats.push_back(bias.at(0, 0, 0, n));
  return floats;
}

CLAIM(projections_have_the_bits_of_the_cpu) {
  for (const Case& c : all_cases) {
    const Tensor x = tokens(c, c.in_heads, c.in_dim, 1, c.x),
                 w = Tensor::random({1, 1, c.out(), c.in()}, 2, 1, c.w);
    const std::vector<float> bias = floats_of(Tensor::random({1, 1, 1, c.out()}, 3));
    const Tensor before = tokens(c, c.out_heads, c.out_dim, 4, c.y);
    Tensor wanted = before, of_small = before, of_large = before, of_chains = before;
    (*backend_of("test", Device::cpu).project(w.view(), bias))(x.view(), wanted.mutable_view());
    run<LinearMapTile, SmallSquares>(map_of(c, x, w, of_small, bias));
    run<LinearMapTile, LargeSquares>(map_of(c, x, w, of_large, bias));
    run_chains(map_of(c, x, w, of_chains, bias));
    expect(of_chains.memory() == wanted.memory(), name_of(c), ", chain by chain");
    expect(of_small.memory() == wanted.memory(), name_of(c), ", small tiles");
    expect(of_large.memory() == wanted.memory(), name_of(c), ", large tiles");
    Tensor of_few = before;
    const LinearMap map = map_of(c, x, w, of_few, bias);
    emulated::launch(few_blocks(map), 32 * few_warps, [&] { FewRows(map).run(); });
    expect(of_few.memory() == wanted.memory(), name_of(c), ", few rows");
  }
}

// By matrix units.

template <Type type, class Shape>
void run_matrix(const LinearMap& map) {
  std::vector<unsigned char> memory(Shape::shared_bytes, 0xff);  // NaN
  shared_memory = memory.data();
  emulated::launch(tiles_of<Shape>(map), Shape::threads,
                   [&] { multiply_by_matrix_units<type, Shape>(map, block_index(), 0); });
}

template <Type type, class Shape>
void run_on_hopper(const LinearMap& map) {
  std::vector<unsigned char> memory(Shape::shared_bytes, 0xff);
  shared_memory = memory.data();
  emulated::launch(tiles_of<Shape>(map), Shape::threads,
                   [&] { multiply_on_hopper<type, Shape>(map, block_index(), 0); });
}

// More than a tile of each shape in every direction, and parts of one; stages that are begun; heads inside
// and outside the length; types of y.
const std::vector<Case> matrix_cases{{2, 75, 3, 16, 5, 32, DType::bf16, DType::bf16, DType::bf16},
                                     {1, 5, 1, 528, 1, 8, DType::f16, DType::f16, DType::f16},
                                     {3, 2, 1, 264, 2, 24, DType::bf16, DType::bf16, DType::f32},
                                     {1, 133, 2, 32, 1, 65, DType::f16, DType::f16, DType::bf16},
                                     {1, 1, 1, 8, 1, 1, DType::bf16, DType::bf16, DType::bf16}};

// What a shape of a block's makes of the call, with x and w at these strides.
template <Type type, class Shape>
Tensor mapped(const Case& c, const Tensor& x, const Tensor& w, const std::vector<float>& bias, Tensor y) {
  const LinearMap map = map_of(c, x, w, y, bias);
  if constexpr (Shape::panel_inputs == 64)
    run_on_hopper<type, Shape>(map);
  else
    run_matrix<type, Shape>(map);
  return y;
}

template <Type type, class Few, class Some, class All>
void expect_matrix_case(const Case& c) {
  const auto packed = [&](std::int64_t heads, std::int64_t dim) {
    return Strides{c.length * heads * dim, dim, heads * dim, 1};
  };
  const Strides of_x = packed(c.in_heads, c.in_dim), of_y = packed(c.out_heads, c.out_dim);
  const Tensor x = Tensor::random({c.batch, c.in_heads, c.length, c.in_dim}, 1, 1, c.x).laid_out(of_x),
               w = Tensor::random({1, 1, c.out(), c.in()}, 2, 1, c.w),
               y = Tensor::random({c.batch, c.out_heads, c.length, c.out_dim}, 4, 1, c.y).laid_out(of_y);
  const std::vector<float> bias = floats_of(Tensor::random({1, 1, 1, c.out()}, 3));
  const Tensor found = mapped<type, All>(c, x, w, bias, y);
  for (std::int64_t row = 0; row < c.rows(); ++row)
    for (std::int64_t out = 0; out < c.out(); ++out) {
      double sum = static_cast<double>(bias[static_cast<std::size_t>(out)]), size = std::abs(sum);
      for (std::int64_t in = 0; in < c.in(); ++in) {
        const double product =
            static_cast<double>(x.at(row / c.length, in / c.in_dim, row % c.length, in % c.in_dim)) *
            static_cast<double>(w.at(0, 0, out, in));
        sum += product, size += std::abs(product);
      }
      const double y_found =
          static_cast<double>(found.at(row / c.length, out / c.out_dim, row % c.length, out % c.out_dim));
      const double rounding = c.y == DType::f32 ? 0 : c.y == DType::bf16 ? 0x1p-8 : 0x1p-11;
      // Instructions may cut sums off instead of rounding them.
      const double bound = rounding * std::abs(sum) + 0x1p-23 * static_cast<double>(c.in() / 8 + 4) * size;
      expect(std::abs(y_found - sum) <= bound,
             name_of(c) + ": row " + std::to_string(row) + ", output " + std::to_string(out));
    }
  // Neither tiles nor strides change a bit.
  expect((mapped<type, Few>(c, x, w, bias, y).memory() == found.memory()), name_of(c), ", few rows");
  expect((mapped<type, Some>(c, x, w, bias, y).memory() == found.memory()), name_of(c), ", some rows");
  const std::int64_t row = c.in() + 8;
  const Tensor far_x = x.laid_out({(c.length + 1) * row, c.in_dim, row, 1}),
               far_w = w.laid_out({0, 0, c.in() + 16, 1});
  expect((mapped<type, Some>(c, far_x, far_w, bias, y).memory() == found.memory()), name_of(c),
         ", other strides");
  const Tensor far_y = mapped<type, Some>(c, x, w, bias, tokens(c, c.out_heads, c.out_dim, 4, c.y));
  bool is_same = true;
  for (std::int64_t row = 0; row < c.rows(); ++row)
    for (std::int64_t out = 0; out < c.out(); ++out) {
      const std::int64_t b = row / c.length, h = out / c.out_dim, i = row % c.length, d = out % c.out_dim;
      is_same = is_same && far_y.at(b, h, i, d) == found.at(b, h, i, d);
    }
  expect(is_same, name_of(c), ", other strides of y");
}

CLAIM(projections_by_matrix_units_are_within_their_bound_whatever_tiles_and_strides) {
  for (const Case& c : matrix_cases)
    if (c.x == DType::bf16)
      expect_matrix_case<Type::bf16, FewRowsShape, SomeRowsShape, AllRowsShape>(c);
    else
      expect_matrix_case<Type::f16, FewRowsShape, ManyRowsShape, AllRowsShape>(c);
}

CLAIM(projections_on_hopper_are_within_their_bound_whatever_tiles_and_strides) {
  for (const Case& c : matrix_cases)
    if (c.x == DType::bf16)
      expect_matrix_case<Type::bf16, FewRowsOnHopper, SomeRowsOnHopper, ManyRowsOnHopper>(c);
    else
      expect_matrix_case<Type::f16, FewRowsOnHopper, SomeRowsOnHopper, ManyRowsOnHopper>(c);
}

// What both add to.
struct Gains {
  Tensor w, bias;

  explicit Gains(const Case& c)
      : w(Tensor::random({1, 1, c.out(), c.in()}, 7)), bias(Tensor::random({1, 1, 1, c.out()}, 8)) {}
};

template <class Shape>
Gains gains_of(const Case& c, const Tensor& x, const Tensor& y) {
  Gains found(c);
  run<WeightGradientTile, Shape>(WeightGradient{.x = rows_of(x.view()),
                                                .y = rows_of(y.view()),
                                                .rows = c.rows(),
                                                .in = c.in(),
                                                .out = c.out(),
                                                .w = static_cast<float*>(found.w.mutable_view().data),
                                                .bias = static_cast<float*>(found.bias.mutable_view().data)});
  return found;
}

void expect_gains_of_the_cpu(const Case& c, const Tensor& x, const Tensor& y, const std::string& what) {
  Gains wanted(c);
  backend_of("test", Device::cpu)
      .add_weight_gradient(x.view(), y.view(), wanted.w.mutable_view(), wanted.bias.mutable_view());
  for (const Gains& found : {gains_of<SmallSquares>(c, x, y), gains_of<LargeSquares>(c, x, y)}) {
    expect(found.w.memory() == wanted.w.memory(), what, ", the matrix");
    expect(found.bias.memory() == wanted.bias.memory(), what, ", the bias");
  }
}

CLAIM(gradients_of_weights_have_the_bits_of_the_cpu) {
  for (const Case& c : all_cases)
    expect_gains_of_the_cpu(c, tokens(c, c.in_heads, c.in_dim, 5, c.x),
                            tokens(c, c.out_heads, c.out_dim, 6, c.y), name_of(c));
}

// NaN of a token whose gradient is 0 changes nothing (G10).
CLAIM(gradients_of_weights_do_not_read_what_has_no_gradient) {
  const Case& c = all_cases[0];
  Tensor x = tokens(c, c.in_heads, c.in_dim, 5, c.x), y = tokens(c, c.out_heads, c.out_dim, 6, c.y);
  for (std::int64_t h = 0; h < c.out_heads; ++h)
    for (std::int64_t d = 0; d < c.out_dim; ++d) y.set(1, h, 9, d, 0);
  x.set(1, 2, 9, 4, NAN);
  expect_gains_of_the_cpu(c, x, y, "a poisoned token");
}

}  // namespace
}  // namespace heed::cuda::test
