// SPDX-License-Identifier: Apache-2.0
// NaN, infinities and numbers at the end of a type's range, planted into the operands of a call.
#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "cases/compare.hpp"

namespace heed::cases {

// One element, one row, a tenth of all elements, or nearly all.
inline void plant(Tensor& x, Dice& dice) {
  const Shape& s = x.shape();
  if (s.elements() == 0) return;
  constexpr float endless = std::numeric_limits<float>::infinity();
  const float largest = x.dtype() == DType::f16 ? 65504.0f : 3e38f;
  const Place at{dice.between(0, s.batch - 1), dice.between(0, s.heads - 1), dice.between(0, s.length - 1),
                 dice.between(0, s.dim - 1)};
  enum class Where : std::uint8_t { element, row, tenth, nearly_all };
  const auto where = dice.pick<Where>({Where::element, Where::row, Where::tenth, Where::nearly_all});
  const std::vector<float> all{
      std::numeric_limits<float>::quiet_NaN(), endless, -endless, largest, -largest, largest / 3};
  const float with = dice.pick(all);
  const bool is_mixed = dice.one_in(2);
  for_each(s, [&](auto b, auto h, auto i, auto d) {
    const bool is_row = b == at.b && h == at.h && i == at.i;
    const bool is_chosen = where == Where::element ? is_row && d == at.d
                           : where == Where::row   ? is_row
                           : where == Where::tenth ? dice.one_in(10)
                                                   : !dice.one_in(50);
    if (is_chosen) x.set(b, h, i, d, is_mixed ? dice.pick(all) : with);
  });
}

// One operand of a call, or two.
inline void plant(Call& call, Dice& dice) {
  std::vector<Tensor*> operands{&call.q, &call.k, &call.v};
  if (call.bias) operands.push_back(&*call.bias);
  if (call.sink) operands.push_back(&*call.sink);
  for (std::int64_t n = dice.between(1, 2); n > 0; --n) plant(*dice.pick(operands), dice);
}

inline Call in_f64(Call call) {
  if (call.bias) call.bias = call.bias->as(DType::f64);
  call.q = call.q.as(DType::f64), call.k = call.k.as(DType::f64), call.v = call.v.as(DType::f64);
  return call;
}

// The same bits, or NaN on both sides.
inline testing::AssertionResult same_numbers(const Tensor& a, const Tensor& b) {
  return same_bits_where(a, b,
                         [&](auto... at) { return !std::isnan(a.at(at...)) || !std::isnan(b.at(at...)); });
}

}  // namespace heed::cases
