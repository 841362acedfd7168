// SPDX-License-Identifier: Apache-2.0
#include "cache/format.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "cache/state.hpp"
#include "refusal/refusal.hpp"

namespace heed::cache {
namespace {

template <class T>
Array scalar_array(Element element, T value) {
  Array array{element, {}, std::vector<std::byte>(sizeof value)};
  std::memcpy(array.data.data(), &value, sizeof value);
  return array;
}

template <class T>
T scalar_of(const Array& array) {
  T value;
  std::memcpy(&value, array.data.data(), sizeof value);
  return value;
}

// Every step is one-to-one in the sum and in the word, so that no single change can be lost.
class Checksum {
 public:
  void add(std::uint64_t word) {
    sum_ = (sum_ ^ word) * 0x9e3779b97f4a7c15u;
    sum_ ^= sum_ >> 32;
  }
  void add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    add(bytes);
    for (; bytes >= 8; bytes -= 8, from += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, from, 8);
      add(word);
    }
    std::uint64_t rest = 0;
    if (bytes > 0) std::memcpy(&rest, from, bytes);
    add(rest);
  }
  std::uint64_t sum() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace

Array integer_array(std::int64_t value) { return scalar_array(Element::i64, value); }

Array integers_array(const std::vector<std::int64_t>& integers) {
  Array array{Element::i64, {static_cast<std::int64_t>(integers.size())}, {}};
  array.data.resize(integers.size() * sizeof(std::int64_t));
  if (!integers.empty()) std::memcpy(array.data.data(), integers.data(), array.data.size());
  return array;
}

void put_config(Arrays& arrays, const KvCacheConfig& c) {
  const auto put = [&](const char* name, std::int64_t value) { arrays[name] = integer_array(value); };
  put("format", cache_format);
  put("config.batch", c.batch);
  put("config.kv_heads", c.kv_heads);
  put("config.capacity", c.capacity);
  put("config.dim", c.dim);
  put("config.value_dim", *c.value_dim);
  put("config.type", static_cast<std::int64_t>(c.type));
  put("config.page_size", *c.page_size);
  put("config.pages", *c.pages);
  if (c.window) {
    put("config.window.length", c.window->length);
    put("config.window.front", c.window->front);
  }
  if (!c.rotary) return;
  put("config.rotary.when", static_cast<std::int64_t>(c.rotary->when));
  put("config.rotary.pairs", static_cast<std::int64_t>(c.rotary->rotary.pairs));
  arrays["config.rotary.base"] = scalar_array(Element::f32, c.rotary->rotary.base);
  if (c.rotary->rotary.dims) put("config.rotary.dims", *c.rotary->rotary.dims);
  if (c.rotary->rotary.scaling) put_scaling(arrays, *c.rotary->rotary.scaling);
}

std::uint64_t checksum_of(const Arrays& arrays) {
  Checksum checksum;
  for (const auto& [name, array] : arrays) {
    if (name == "checksum") continue;
    checksum.add(name.data(), name.size());
    checksum.add(static_cast<std::uint64_t>(array.element));
    checksum.add(array.shape.data(), array.shape.size() * sizeof(std::int64_t));
    checksum.add(array.data.data(), array.data.size());
  }
  return checksum.sum();
}

void put_checksum(Arrays& arrays) { arrays["checksum"] = scalar_array(Element::u64, checksum_of(arrays)); }

CacheFields::CacheFields(std::string file, Arrays arrays)
    : file_(std::move(file)), arrays_(std::move(arrays)) {
  if (!has("format")) throw refusal(Error::file, file_, ": holds no cache; it has no \"format\"");
  if (const std::int64_t format = integer("format"); format != cache_format)
    throw refusal(Error::file, file_, ": format ", format, " is not the one known here, ", cache_format);
  arrays_["format"] = scalar_array(Element::i64, cache_format);
  const std::uint64_t sum = checksum_of(arrays_);
  if (scalar_of<std::uint64_t>(take("checksum", Element::u64, 0)) != sum)
    throw refusal(Error::file, file_, ": the checksum does not match; it is damaged");
  arrays_.erase("format");
}

Array CacheFields::take(const std::string& name, Element element, std::size_t rank) {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) throw refusal(Error::file, file_, ": there is no \"", name, "\"");
  Array& array = found->second;
  if (array.element != element || array.shape.size() != rank)
    throw refusal(Error::file, file_, ": ", name, " is ", name_of(array.element), " of rank ",
                  static_cast<std::int64_t>(array.shape.size()), ", not ", name_of(element), " of rank ",
                  static_cast<std::int64_t>(rank));
  return std::move(arrays_.extract(found).mapped());
}

std::int64_t CacheFields::integer(const std::string& name) {
  return scalar_of<std::int64_t>(take(name, Element::i64, 0));
}

std::int64_t CacheFields::choice(const std::string& name, std::int64_t last) {
  const std::int64_t value = integer(name);
  if (value < 0 || value > last)
    throw refusal(Error::file, file_, ": ", name, ": ", value, " is not in [0, ", last, "]");
  return value;
}

std::vector<std::int64_t> CacheFields::integers(const std::string& name) {
  return take(name, Element::i64, 1).to_integers();
}

float CacheFields::real(const std::string& name) { return scalar_of<float>(take(name, Element::f32, 0)); }

std::vector<float> CacheFields::reals(const std::string& name) {
  return take(name, Element::f32, 1).to_floats();
}

void CacheFields::check_nothing_is_left() const {
  if (!arrays_.empty())
    throw refusal(Error::file, file_, ": \"", arrays_.begin()->first, "\" is unknown here");
}

KvCacheConfig take_config(CacheFields& fields) {
  KvCacheConfig c;
  c.batch = fields.integer("config.batch");
  c.kv_heads = fields.integer("config.kv_heads");
  c.capacity = fields.integer("config.capacity");
  c.dim = fields.integer("config.dim");
  c.value_dim = fields.integer("config.value_dim");
  c.type = static_cast<CacheType>(fields.choice("config.type", static_cast<std::int64_t>(CacheType::int8)));
  c.page_size = fields.integer("config.page_size");
  c.pages = fields.integer("config.pages");
  if (fields.has("config.window.length"))
    c.window = {fields.integer("config.window.length"), fields.integer("config.window.front")};
  if (fields.has("config.rotary.when")) {
    c.rotary.emplace();
    c.rotary->when = static_cast<CacheRotary::When>(fields.choice("config.rotary.when", 1));
    c.rotary->rotary.pairs = static_cast<RotaryPairs>(fields.choice("config.rotary.pairs", 1));
    c.rotary->rotary.base = fields.real("config.rotary.base");
    if (fields.has("config.rotary.dims")) c.rotary->rotary.dims = fields.integer("config.rotary.dims");
    c.rotary->rotary.scaling = take_scaling(fields);
  }
  try {
    return complete(c);
  } catch (const Error& error) {
    throw refusal(Error::file, fields.file(), ": ", error.what());
  }
}

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
