// SPDX-License-Identifier: Apache-2.0
#include "cache/scaling_format.hpp"

#include <string>

namespace heed::cache {
namespace {

constexpr const char* prefix = "config.rotary.scaling";

std::string path_of(const char* field) { return std::string(prefix) + "." + field; }

// The fields of each kind under the names they have in a file, for writing and for reading.
template <class Scaling, class Field>
void each_field(Scaling& s, const Field& field) {
  if constexpr (requires { s.factor; }) field("factor", s.factor);
  if constexpr (requires { s.original_length; }) field("original_length", s.original_length);
  if constexpr (requires { s.beta_fast; }) {
    field("beta_fast", s.beta_fast);
    field("beta_slow", s.beta_slow);
    field("truncate", s.truncate);
  }
  if constexpr (requires { s.low_frequency_factor; }) {
    field("low_frequency_factor", s.low_frequency_factor);
    field("high_frequency_factor", s.high_frequency_factor);
  }
  if constexpr (requires { s.short_factors; }) {
    field("short_factors", s.short_factors);
    field("long_factors", s.long_factors);
  }
  if constexpr (requires { s.attention_factor; }) field("attention_factor", s.attention_factor);
}

struct Put {
  Arrays& arrays;

  void operator()(const char* name, const std::vector<float>& numbers) const {
    arrays[path_of(name)] = Array::from_floats({std::ssize(numbers)}, numbers);
  }
  void operator()(const char* name, float number) const {
    arrays[path_of(name)] = Array::from_floats({}, {number});
  }
  void operator()(const char* name, const std::optional<float>& number) const {
    if (number) (*this)(name, *number);
  }
  void operator()(const char* name, std::int64_t number) const {
    arrays[path_of(name)] = integer_array(number);
  }
  void operator()(const char* name, bool truth) const { (*this)(name, std::int64_t{truth}); }
};

struct Take {
  CacheFields& fields;

  void operator()(const char* name, std::vector<float>& numbers) const {
    numbers = fields.reals(path_of(name));
  }
  void operator()(const char* name, float& number) const { number = fields.real(path_of(name)); }
  void operator()(const char* name, std::optional<float>& number) const {
    if (fields.has(path_of(name))) number = fields.real(path_of(name));
  }
  void operator()(const char* name, std::int64_t& number) const { number = fields.integer(path_of(name)); }
  void operator()(const char* name, bool& truth) const { truth = fields.choice(path_of(name), 1) == 1; }
};

// The kind of this place in the variant.
template <std::size_t place = 0>
RotaryScaling scaling_at(std::size_t wanted) {
  if constexpr (place + 1 < std::variant_size_v<RotaryScaling>) {
    if (wanted != place) return scaling_at<place + 1>(wanted);
  }
  return RotaryScaling(std::in_place_index<place>);
}

}  // namespace

void put_scaling(Arrays& arrays, const RotaryScaling& scaling) {
  arrays[prefix] = integer_array(static_cast<std::int64_t>(scaling.index()));
  std::visit([&](const auto& s) { each_field(s, Put{arrays}); }, scaling);
}

std::optional<RotaryScaling> take_scaling(CacheFields& fields) {
  if (!fields.has(prefix)) return {};
  constexpr std::int64_t last = std::variant_size_v<RotaryScaling> - 1;
  RotaryScaling scaling = scaling_at(static_cast<std::size_t>(fields.choice(prefix, last)));
  std::visit([&](auto& s) { each_field(s, Take{fields}); }, scaling);
  return scaling;
}

}  // namespace heed::cache
