// SPDX-License-Identifier: Apache-2.0
#include "cases/adversarial.hpp"

#include <limits>

namespace heed::cases {
namespace {

constexpr std::int64_t keys = 140, many_keys = 2100, queries = 10, dim = 8;
constexpr float infinity = std::numeric_limits<float>::infinity();

Call mixed(DType dtype, float q = 1, float k = 1, float v = 1, std::int64_t length = keys) {
  return {.q = Tensor::random({1, 2, queries, dim}, 71, q, dtype),
          .k = Tensor::random({1, 1, length, dim}, 72, k, dtype),
          .v = Tensor::random({1, 1, length, dim}, 73, v, dtype)};
}

// Score j of every query is exactly s(j): q is (1, 0, ...), k is (s, 0, ...), the scale is 1.
template <class Score>
Call scored(DType dtype, Score s, std::int64_t length = keys) {
  Call call = mixed(dtype, 1, 1, 1, length);
  call.q.fill(0);
  call.k.fill(0);
  call.scale = 1.0f;
  for (std::int64_t h : {0, 1})
    for (std::int64_t i = 0; i < queries; ++i) call.q.set(0, h, i, 0, 1);
  for (std::int64_t j = 0; j < length; ++j) call.k.set(0, 0, j, 0, s(j));
  return call;
}

template <class Bias>
Call biased(DType dtype, Bias bias) {
  Call call = mixed(dtype);
  call.bias = Tensor({1, 1, queries, keys});
  for_each(call.bias->shape(),
           [&](auto b, auto h, auto i, auto j) { call.bias->set(b, h, i, j, bias(i, j)); });
  return call;
}

}  // namespace

std::pair<std::string, Call> adversarial(int which, DType dtype) {
  switch (which) {
    case 0:
      return {"scores of +-1e4", scored(dtype, [](auto j) { return j % 2 == 0 ? 1e4f : -1e4f; })};
    case 1:
      return {"scores of -1e4, one of +1e4 at the end",
              scored(dtype, [](auto j) { return j == keys - 1 ? 1e4f : -1e4f; })};
    case 2:
      return {"scores that rise, so the maximum moves with every key",
              scored(dtype, [](auto j) { return static_cast<float>(j) * 2; })};
    case 3:
      return {"scores that fall", scored(dtype, [](auto j) { return static_cast<float>(j) * -2; })};
    case 4:
      return {"equal scores, far below zero", scored(dtype, [](auto) { return -20000.0f; })};
    case 5:
      return {"one-hot", scored(dtype, [](auto j) { return j == 77 ? 500.0f : 0.0f; })};
    case 6:
      return {"large random scores", mixed(dtype, 128, 64)};
    case 7:
      return {"denormal values", mixed(dtype, 1, 1, dtype == DType::f16 ? 0x1p-20f : 0x1p-130f)};
    case 8:
      return {"denormal queries and keys",
              mixed(dtype, dtype == DType::f16 ? 0x1p-20f : 0x1p-130f, 0x1p-14f)};
    case 9:
      return {"large values", mixed(dtype, 4, 4, 0x1p15f)};
    case 10:
      return {"rows of -inf bias", biased(dtype, [](auto i, auto j) {
                return i % 2 == 0 || j < 5 * i ? -infinity : 0.25f * static_cast<float>(j % 7);
              })};
    case 11:
      return {"one visible key in each row, the first of a tile or the last",
              biased(dtype,
                     [](auto i, auto j) { return j == (i * 64 + (i % 2) * 63) % keys ? 3.0f : -infinity; })};
    case 12:
      return {"a bias as low as a float goes", biased(dtype, [](auto i, auto j) {
                return (i + j) % 3 == 0 ? std::numeric_limits<float>::lowest() : 0.0f;
              })};
    case 13:
      return {"scores that rise by a little over thousands of keys",
              scored(dtype, [](auto j) { return static_cast<float>(j / 64) * 0.25f; }, many_keys)};
    case 14:
      return {"scores that fall by a little over thousands of keys",
              scored(dtype, [](auto j) { return static_cast<float>(j / 64) * -0.25f; }, many_keys)};
    case 15:
      return {"denormal queries, keys so large that their scores matter",
              dtype == DType::f16 ? mixed(dtype, 0x1p-15f, 0x1p14f) : mixed(dtype, 0x1p-126f, 0x1p125f)};
    default:
      return {"scores at the edge of underflow",
              scored(dtype, [](auto j) { return j == 0 ? 0.0f : -80.0f - static_cast<float>(j) / 4; })};
  }
}

}  // namespace heed::cases
