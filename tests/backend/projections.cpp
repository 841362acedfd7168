// SPDX-License-Identifier: Apache-2.0
// Projections that are asked for together write what each writes by itself, whatever they share.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "cases/tensor.hpp"
#include "heed/heed.hpp"

namespace heed::cases {
namespace {

// A matrix, whether it has a bias, and what it writes.
struct Kind {
  std::int64_t heads, dim;
  bool has_bias;
  DType weights, y;
};
// Panels of no instruction set are filled by the outputs of the first three.
const std::vector<Kind> in_f32{{3, 13, true, DType::f32, DType::f32},
                               {1, 1, true, DType::f32, DType::bf16},
                               {5, 29, false, DType::f32, DType::f32},
                               {1, 96, true, DType::f32, DType::f16}};
const std::vector<Kind> in_bf16{{5, 29, true, DType::bf16, DType::bf16},
                                {3, 13, true, DType::bf16, DType::f32},
                                {1, 64, false, DType::bf16, DType::bf16},
                                {1, 1, true, DType::bf16, DType::f32}};
const std::vector<Kind> mixed{{3, 13, true, DType::f32, DType::f32},
                              {5, 29, true, DType::bf16, DType::f32},
                              {2, 7, false, DType::f16, DType::f32},
                              {1, 0, true, DType::f32, DType::f32}};

constexpr std::int64_t width = 43;

std::unique_ptr<const Projection> make(const Backend& backend, const Kind& kind, std::uint64_t seed) {
  const std::int64_t out = kind.heads * kind.dim;
  const Tensor w = Tensor::random({1, 1, out, width}, seed, 1, kind.weights);
  std::vector<float> bias;
  for (std::int64_t n = 0; kind.has_bias && n < out; ++n)
    bias.push_back(uniform(seed + 10, static_cast<std::uint64_t>(n)));
  return backend.project(w.view(), bias);
}

// Heads in turn inside and outside the length, with gaps between the rows or the heads.
Tensor make_y(const Shape& rows, const Kind& kind, bool inside) {
  const Shape shape{rows.batch, kind.heads, rows.length, kind.dim};
  const std::int64_t row = kind.heads * kind.dim + 3, head = rows.length * kind.dim + 5;
  const Strides stride =
      inside ? Strides{rows.length * row, kind.dim, row, 1} : Strides{kind.heads * head, head, kind.dim, 1};
  Tensor y(shape, stride, kind.y);
  y.fill_bytes(0xa5);
  return y;
}

// Projection n reads x[n].
void expect_each_as_alone(const std::vector<Kind>& kinds, const std::vector<const Tensor*>& x) {
  const Backend& backend = backend_of("test", Device::cpu);
  std::vector<std::unique_ptr<const Projection>> projections;
  std::vector<Tensor> alone, together;
  for (std::size_t n = 0; n < kinds.size(); ++n) {
    projections.push_back(make(backend, kinds[n], 20 + n));
    alone.push_back(make_y(x[n]->shape(), kinds[n], n % 2 == 0));
    together.push_back(alone.back());
  }
  std::vector<Projected> all;
  for (std::size_t n = 0; n < kinds.size(); ++n) {
    (*projections[n])(x[n]->view(), alone[n].mutable_view());
    all.push_back({*projections[n], x[n]->view(), together[n].mutable_view()});
  }
  backend.project_all(all);
  for (std::size_t n = 0; n < kinds.size(); ++n)
    EXPECT_TRUE(together[n].memory() == alone[n].memory()) << "projection " << n << " of " << kinds.size();
}

class ProjectionsTogether : public testing::Test {
 protected:
  ~ProjectionsTogether() override { set_num_threads(before_); }

 private:
  int before_ = num_threads();
};

// One row, a few, tiles, and so many that the last of them are cut along the outputs.
TEST_F(ProjectionsTogether, of_one_x_write_what_each_writes_alone) {
  for (const int threads : {1, 3})
    for (const std::int64_t tokens : {0, 1, 2, 20, 300})
      for (const auto& [kinds, dtype] : {std::pair(in_f32, DType::f32),
                                         {in_f32, DType::f16},
                                         {in_bf16, DType::bf16},
                                         {in_bf16, DType::f32},
                                         {mixed, DType::f32},
                                         {mixed, DType::bf16}}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, 2 x " << tokens << " tokens");
        set_num_threads(threads);
        const Tensor x = Tensor::random({2, 1, tokens, width}, 1, 1, dtype);
        for (std::size_t count = 1; count <= kinds.size(); ++count)
          expect_each_as_alone({kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(count)},
                               std::vector<const Tensor*>(count, &x));
      }
}

// As in cross attention; and inputs that differ in nothing but where they lie, or how.
TEST_F(ProjectionsTogether, read_each_its_own_x) {
  set_num_threads(3);
  const Tensor x = Tensor::random({2, 1, 9, width}, 1), same_shape = Tensor::random({2, 1, 9, width}, 2),
               other_shape = Tensor::random({3, 1, 6, width}, 3),
               other_type = Tensor::random({2, 1, 9, width}, 4, 1, DType::bf16);
  for (const Tensor* other : {&same_shape, &other_shape, &other_type}) {
    expect_each_as_alone(in_f32, {&x, other, other, other});
    expect_each_as_alone(in_f32, {&x, &x, other, other});
    expect_each_as_alone(in_f32, {&x, other, &x, other});
  }
}

TEST_F(ProjectionsTogether, tell_views_of_one_memory_apart) {
  const Backend& backend = backend_of("test", Device::cpu);
  const auto first = make(backend, in_f32[0], 20), second = make(backend, in_f32[0], 20);
  const Tensor memory = Tensor::random({1, 1, 2 * width, width}, 1);
  View rows = memory.view();
  rows.shape.length = width;
  View every_other = rows, columns = rows, fewer = rows;
  every_other.stride.length = 2 * width;
  std::swap(columns.stride.length, columns.stride.dim);
  fewer.shape.length = width - 1;
  for (const View& other : {every_other, columns, fewer}) {
    Tensor a = make_y(rows.shape, in_f32[0], true), b = make_y(other.shape, in_f32[0], true), wanted = b;
    (*second)(other, wanted.mutable_view());
    backend.project_all({{{*first, rows, a.mutable_view()}, {*second, other, b.mutable_view()}}});
    EXPECT_TRUE(b.memory() == wanted.memory());
  }
}

}  // namespace
}  // namespace heed::cases
