// SPDX-License-Identifier: Apache-2.0
// Reads and makes the dict of a rotary scaling: each kind is a list of keys and fields, for both directions.
#include "scaling.hpp"

#include <array>
#include <set>

#include "views.hpp"

namespace heed::python {

namespace {

constexpr std::array kinds{"linear", "dynamic", "yarn", "llama3", "longrope"};  // in the variant's order
static_assert(kinds.size() == std::variant_size_v<RotaryScaling>);

template <class Scaling, class Field>
void each_field(Scaling& s, const Field& field) {
  if constexpr (requires { s.factor; }) {
    // What longrope has only for the sake of its attention factor need not be said beside that.
    field("factor", s.factor, requires { s.short_factors; });
  }
  if constexpr (requires { s.original_length; })
    field("original_max_position_embeddings", s.original_length, false);
  if constexpr (requires { s.low_frequency_factor; }) {
    field("low_freq_factor", s.low_frequency_factor, true);
    field("high_freq_factor", s.high_frequency_factor, true);
  }
  if constexpr (requires { s.beta_fast; }) {
    field("beta_fast", s.beta_fast, true);
    field("beta_slow", s.beta_slow, true);
    field("truncate", s.truncate, true);
  }
  if constexpr (requires { s.short_factors; }) {
    field("short_factor", s.short_factors, false);
    field("long_factor", s.long_factors, false);
  }
  if constexpr (requires { s.attention_factor; }) field("attention_factor", s.attention_factor, true);
}

// Takes the fields of a kind out of the dict.
struct Take {
  const nb::dict& dict;
  std::set<std::string>& taken;

  template <class Value>
  void operator()(const char* name, Value& value, bool may_be_missing) const {
    taken.insert(name);
    const std::string in_sentences = std::string("scaling[\"") + name + "\"]";
    const bool is_there = dict.contains(name) && !dict[name].is_none();
    if (is_there)
      read(in_sentences.c_str(), dict[name], value);
    else if (!may_be_missing)
      throw Error(Error::value, in_sentences + ": missing");
  }

  static void read(const char* name, nb::handle object, float& value) { value = read_float(name, object); }
  static void read(const char* name, nb::handle object, std::optional<float>& value) {
    value = read_float(name, object);
  }
  static void read(const char* name, nb::handle object, std::int64_t& value) {
    value = read_integer(name, object);
  }
  static void read(const char* name, nb::handle object, bool& value) { value = read_flag(name, object); }
  static void read(const char* name, nb::handle object, std::vector<float>& values) {
    if (!nb::isinstance<nb::list>(object) && !nb::isinstance<nb::tuple>(object))
      throw wrong_kind(name, object, "a list of numbers");
    for (const nb::handle item : object) values.push_back(read_float(name, item));
  }
};

struct Put {
  nb::dict& dict;

  template <class Value>
  void operator()(const char* name, const Value& value, bool) const {
    dict[name] = value;
  }
  void operator()(const char* name, const std::optional<float>& value, bool) const {
    if (value) dict[name] = *value;
  }
  void operator()(const char* name, const std::vector<float>& values, bool) const {
    nb::list list;
    for (const float value : values) list.append(value);
    dict[name] = list;
  }
};

template <std::size_t place = 0>
RotaryScaling scaling_at(std::size_t wanted) {
  if constexpr (place + 1 < std::variant_size_v<RotaryScaling>) {
    if (wanted != place) return scaling_at<place + 1>(wanted);
  }
  return RotaryScaling(std::in_place_index<place>);
}

std::size_t read_kind(const nb::dict& dict) {
  const char* key = dict.contains("rope_type") ? "rope_type" : "type";
  if (!dict.contains(key)) throw Error(Error::value, "scaling[\"rope_type\"]: missing");
  const std::string word = read_word("scaling[\"rope_type\"]", dict[key]);
  if (word == "default") return kinds.size();
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (word == kinds[i]) return i;
  throw Error(Error::value, "scaling[\"rope_type\"]: \"" + word +
                                "\" is none of \"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\", "
                                "\"longrope\"");
}

void check_nothing_is_left(const nb::dict& dict, const std::set<std::string>& taken, const char* kind) {
  for (const auto& [key, value] : dict) {
    const std::string name = read_word("scaling's key", key);
    if (taken.contains(name) || value.is_none()) continue;
    const char* hint = name == "rope_theta"              ? "; say Rotary's base"
                       : name == "partial_rotary_factor" ? "; say Rotary's dims"
                                                         : "";
    throw Error(Error::value, "scaling[\"" + name + "\"]: " + kind + " scaling has no such number" + hint);
  }
}

}  // namespace

std::optional<RotaryScaling> read_scaling(nb::handle object) {
  if (object.is_none()) return {};
  if (!nb::isinstance<nb::dict>(object)) throw wrong_kind("scaling", object, "a dict");
  const auto dict = nb::borrow<nb::dict>(object);
  const std::size_t kind = read_kind(dict);
  std::set<std::string> taken{"rope_type", "type"};
  if (kind == kinds.size()) {
    check_nothing_is_left(dict, taken, "default");
    return {};
  }
  RotaryScaling scaling = scaling_at(kind);
  std::visit([&](auto& s) { each_field(s, Take{dict, taken}); }, scaling);
  check_nothing_is_left(dict, taken, kinds[kind]);
  return scaling;
}

nb::object scaling_as_dict(const std::optional<RotaryScaling>& scaling) {
  if (!scaling) return nb::none();
  nb::dict dict;
  dict["rope_type"] = kinds[scaling->index()];
  std::visit([&](const auto& s) { each_field(s, Put{dict}); }, *scaling);
  return dict;
}

}  // namespace heed::python
