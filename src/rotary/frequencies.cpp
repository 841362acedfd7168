// SPDX-License-Identifier: Apache-2.0
// The scalings as Hugging Face's transformers computes them (S15), in double where it has float.
#include "rotary/frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heed::rotary {
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

  // The pair, as a real number, that turns so many times within the original length.
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
      const double turns = original * frequency / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      frequency = mix(frequency / s.factor, frequency, kept);
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
