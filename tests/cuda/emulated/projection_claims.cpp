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
                                  {1, 1, 1, 1, 1, 1, DType::f32, DType::f32, DType::f32}};

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

template <class Tile, class Call>
void run(const Call& call) {
  ProjectionMemory memory;
  emulated::launch(blocks_of(call), projection_threads, [&] { Tile(call, memory).run(); });
}

CLAIM(projections_have_the_bits_of_the_cpu) {
  for (const Case& c : all_cases) {
    const Tensor x = tokens(c, c.in_heads, c.in_dim, 1, c.x),
                 w = Tensor::random({1, 1, c.out(), c.in()}, 2, 1, c.w),
                 b = Tensor::random({1, 1, 1, c.out()}, 3);
    std::vector<float> bias;
    for (std::int64_t n = 0; n < c.out(); ++n) bias.push_back(b.at(0, 0, 0, n));
    Tensor wanted = tokens(c, c.out_heads, c.out_dim, 4, c.y), found = wanted;
    (*backend_of("test", Device::cpu).project(w.view(), bias))(x.view(), wanted.mutable_view());
    run<LinearMapTile>(LinearMap{.x = rows_of(x.view()),
                                 .y = rows_of(found.mutable_view()),
                                 .rows = c.rows(),
                                 .w = w.view().data,
                                 .w_type = problem::type_of(c.w),
                                 .in = c.in(),
                                 .out = c.out(),
                                 .bias = bias.data()});
    expect(found.memory() == wanted.memory(), name_of(c));
  }
}

// What both add to.
struct Gains {
  Tensor w, bias;

  explicit Gains(const Case& c)
      : w(Tensor::random({1, 1, c.out(), c.in()}, 7)), bias(Tensor::random({1, 1, 1, c.out()}, 8)) {}
};

void expect_gains_of_the_cpu(const Case& c, const Tensor& x, const Tensor& y, const std::string& what) {
  Gains wanted(c), found = wanted;
  backend_of("test", Device::cpu)
      .add_weight_gradient(x.view(), y.view(), wanted.w.mutable_view(), wanted.bias.mutable_view());
  run<WeightGradientTile>(WeightGradient{.x = rows_of(x.view()),
                                         .y = rows_of(y.view()),
                                         .rows = c.rows(),
                                         .in = c.in(),
                                         .out = c.out(),
                                         .w = static_cast<float*>(found.w.mutable_view().data),
                                         .bias = static_cast<float*>(found.bias.mutable_view().data)});
  expect(found.w.memory() == wanted.w.memory(), what, ", the matrix");
  expect(found.bias.memory() == wanted.bias.memory(), what, ", the bias");
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
