// SPDX-License-Identifier: Apache-2.0
// The numbers of a rotary embedding: each by itself, and those that a formula of S15 would divide by.
#include "rotary/check.hpp"

#include <cmath>
#include <string>

#include "refusal/refusal.hpp"

namespace heed::rotary {
namespace {

struct ScalingCheck {
  std::string name;  // "config.rotary.scaling"
  float base;
  std::int64_t dims;

  void check_positive(const char* field, float number) const {
    if (!(number > 0) || !std::isfinite(number))
      throw refusal(Error::value, name, ".", field, ": ", number, " is not a positive finite number");
  }
  void check_length(std::int64_t length, std::int64_t least) const {
    if (length < least) throw refusal(Error::value, name, ".original_length: ", length, " is below ", least);
  }
  void check_divisors(const char* field, const std::vector<float>& divisors) const {
    if (std::ssize(divisors) != dims / 2)
      throw refusal(Error::shape, name, ".", field, ": ", std::ssize(divisors),
                    " numbers are not one per pair: ", dims / 2);
    for (const float divisor : divisors) check_positive(field, divisor);
  }

  void operator()(const LinearScaling& s) const { check_positive("factor", s.factor); }

  void operator()(const DynamicScaling& s) const {
    check_positive("factor", s.factor);
    check_length(s.original_length, 1);
    if (dims == 2) throw refusal(Error::value, name, ": a dynamic one needs more than 2 turning dimensions");
  }

  void operator()(const YarnScaling& s) const {
    check_positive("factor", s.factor);
    check_length(s.original_length, 1);
    check_positive("beta_fast", s.beta_fast);
    check_positive("beta_slow", s.beta_slow);
    if (s.beta_fast < s.beta_slow)
      throw refusal(Error::value, name, ".beta_fast: ", s.beta_fast, " is below beta_slow: ", s.beta_slow);
    if (s.attention_factor) check_positive("attention_factor", *s.attention_factor);
    if (!(base > 1)) throw refusal(Error::value, name, ": yarn needs a base above 1, not ", base);
  }

  void operator()(const Llama3Scaling& s) const {
    check_positive("factor", s.factor);
    check_length(s.original_length, 1);
    check_positive("low_frequency_factor", s.low_frequency_factor);
    check_positive("high_frequency_factor", s.high_frequency_factor);
    if (s.high_frequency_factor <= s.low_frequency_factor)
      throw refusal(Error::value, name, ".high_frequency_factor: ", s.high_frequency_factor,
                    " is not above low_frequency_factor: ", s.low_frequency_factor);
  }

  void operator()(const LongRopeScaling& s) const {
    check_divisors("short_factors", s.short_factors);
    check_divisors("long_factors", s.long_factors);
    check_length(s.original_length, 2);
    if (s.attention_factor)
      check_positive("attention_factor", *s.attention_factor);
    else
      check_positive("factor", s.factor);
  }
};

}  // namespace

void check_rotary(const Rotary& rotary, std::int64_t dim, const char* name) {
  if (!(rotary.base > 0) || !std::isfinite(rotary.base))
    throw refusal(Error::value, name, ".base: ", rotary.base, " is not a positive finite number");
  const std::int64_t dims = rotary.dims.value_or(dim);
  if (dims < 2 || dims % 2 != 0)
    throw refusal(Error::value, name, ".dims: ", dims, " is not a positive even number",
                  rotary.dims ? "" : " (the whole head turns unless dims says otherwise)");
  if (dims > dim) throw refusal(Error::value, name, ".dims: ", dims, " is more than the head's dim: ", dim);
  if (rotary.pairs > RotaryPairs::adjacent)
    throw refusal(Error::value, name, ".pairs: ", static_cast<std::int64_t>(rotary.pairs),
                  " is none of halves, adjacent");
  if (rotary.scaling)
    std::visit(ScalingCheck{std::string(name) + ".scaling", rotary.base, dims}, *rotary.scaling);
}

const char* name_of(const RotaryScaling& scaling) {
  constexpr const char* names[] = {"linear", "dynamic", "yarn", "llama3", "longrope"};
  static_assert(std::size(names) == std::variant_size_v<RotaryScaling>);
  return names[scaling.index()];
}

}  // namespace heed::rotary
