// SPDX-License-Identifier: Apache-2.0
// A rotary embedding: what is refused of its numbers, and its frequencies with their scalings.
#include "rotary/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
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

// The scalings as Hugging Face's transformers computes them (S15), in double where it has float.

namespace {

// base^(-2n / dims) for pair n.
std::vector<double> powers(double base, std::int64_t dims) {
  std::vector<double> per_pair;
  per_pair.reserve(static_cast<std::size_t>(dims / 2));
  for (std::int64_t d = 0; d < dims; d += 2)
    per_pair.push_back(std::pow(base, -static_cast<double>(d) / static_cast<double>(dims)));
  return per_pair;
}

double mix(double a, double b, double share_of_b) { return a * (1 - share_of_b) + b * share_of_b; }

struct Scaler {
  double base;
  std::int64_t dims, length;

  Frequencies operator()(const LinearScaling& s) const {
    Frequencies scaled{powers(base, dims)};
    for (double& frequency : scaled.per_pair) frequency /= s.factor;
    return scaled;
  }

  Frequencies operator()(const DynamicScaling& s) const {
    if (length <= s.original_length) return {powers(base, dims)};
    const double ratio = static_cast<double>(length) / static_cast<double>(s.original_length);
    const double growth = s.factor * ratio - (s.factor - 1.0);
    const auto d = static_cast<double>(dims);
    return {powers(base * std::pow(growth, d / (d - 2)), dims)};
  }

  // The pair, as a real number, that rotates so many times within the original length.
  double pair_rotating(double times, std::int64_t original_length) const {
    return static_cast<double>(dims) *
           std::log(static_cast<double>(original_length) / (times * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  }

  Frequencies operator()(const YarnScaling& s) const {
    double first = pair_rotating(s.beta_fast, s.original_length);
    double last = pair_rotating(s.beta_slow, s.original_length);
    if (s.truncate) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, static_cast<double>(dims - 1));
    if (first == last) last += 0.001;  // a ramp of no length would be 0/0 at its pair
    Frequencies scaled{powers(base, dims)};
    for (std::size_t n = 0; n < scaled.per_pair.size(); ++n) {
      const double ramp = std::clamp((static_cast<double>(n) - first) / (last - first), 0.0, 1.0);
      scaled.per_pair[n] = mix(scaled.per_pair[n], scaled.per_pair[n] / s.factor, ramp);
    }
    const double usual = s.factor <= 1 ? 1.0 : 0.1 * std::log(static_cast<double>(s.factor)) + 1;
    scaled.attention_factor = s.attention_factor ? *s.attention_factor : usual;
    return scaled;
  }

  Frequencies operator()(const Llama3Scaling& s) const {
    const auto original = static_cast<double>(s.original_length);
    const double low = s.low_frequency_factor, high = s.high_frequency_factor;
    Frequencies scaled{powers(base, dims)};
    for (double& frequency : scaled.per_pair) {
      const double rotates = original * frequency / (2 * std::numbers::pi);
      const double share = std::clamp((rotates - low) / (high - low), 0.0, 1.0);
      frequency = mix(frequency / s.factor, frequency, share);
    }
    return scaled;
  }

  Frequencies operator()(const LongRopeScaling& s) const {
    const std::vector<float>& divisors = length > s.original_length ? s.long_factors : s.short_factors;
    Frequencies scaled{powers(base, dims)};
    for (std::size_t n = 0; n < scaled.per_pair.size(); ++n) scaled.per_pair[n] /= divisors[n];
    const double of_original = std::log(static_cast<double>(s.original_length));
    const double usual =
        s.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(static_cast<double>(s.factor)) / of_original);
    scaled.attention_factor = s.attention_factor ? *s.attention_factor : usual;
    return scaled;
  }
};

}  // namespace

Frequencies frequencies(const Rotary& rotary, std::int64_t dims, std::int64_t length) {
  if (!rotary.scaling) return {powers(rotary.base, dims)};
  return std::visit(Scaler{rotary.base, dims, length}, *rotary.scaling);
}

bool depends_on_length(const Rotary& rotary) {
  return rotary.scaling && (std::holds_alternative<DynamicScaling>(*rotary.scaling) ||
                            std::holds_alternative<LongRopeScaling>(*rotary.scaling));
}

}  // namespace heed::rotary
