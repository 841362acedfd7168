// SPDX-License-Identifier: Apache-2.0
#include "ranks/meaning.hpp"

#include <bit>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "call/likeness.hpp"
#include "heed/option_list.hpp"

namespace heed::ranks {
namespace {

using call::mix, call::mix_list;

std::int64_t hash_of(const Split& split) {
  std::int64_t hash = 1;
  for (const Share& s : split.of_rank) {
    hash = mix(mix(hash, s.first_kv_head), s.kv_heads);
    for (const auto* stretches : {&s.queries, &s.keys}) {
      hash = mix(hash, std::ssize(*stretches));
      for (const Stretch& one : *stretches) hash = mix(mix(hash, one.first), one.length);
    }
  }
  return hash;
}

// A rotary embedding, field after field. (Not as a list: memory for one could end on one rank alone.)
struct HashOfRotary {
  std::int64_t hash = 4;

  void mix_in(std::int64_t x) { hash = mix(hash, x); }
  void mix_in(float x) { mix_in(std::int64_t{std::bit_cast<std::int32_t>(x)}); }
  void mix_in(bool x) { mix_in(std::int64_t{x}); }
  void mix_in(const std::optional<float>& x) { mix_in(x.has_value()), mix_in(x.value_or(0)); }
  void mix_in(const std::vector<float>& list) {
    mix_in(std::int64_t{std::ssize(list)});
    for (const float x : list) mix_in(x);
  }
  template <class... Fields>
  void mix_in_all(const Fields&... fields) {
    (mix_in(fields), ...);
  }

  void operator()(const LinearScaling& s) { mix_in(s.factor); }
  void operator()(const DynamicScaling& s) { mix_in_all(s.factor, s.original_length); }
  void operator()(const YarnScaling& s) {
    mix_in_all(s.factor, s.original_length, s.beta_fast, s.beta_slow, s.truncate, s.attention_factor);
  }
  void operator()(const Llama3Scaling& s) {
    mix_in_all(s.factor, s.original_length, s.low_frequency_factor, s.high_frequency_factor);
  }
  void operator()(const LongRopeScaling& s) {
    mix_in_all(s.short_factors, s.long_factors, s.original_length, s.factor, s.attention_factor);
  }
};

}  // namespace

std::int64_t number_of(std::span<const std::int64_t> numbers) { return mix_list(3, numbers); }

std::int64_t number_of(const std::optional<Rotary>& rotary) {
  if (!rotary) return 0;
  HashOfRotary said;
  said.mix_in_all(rotary->base, rotary->dims.value_or(0), static_cast<std::int64_t>(rotary->pairs));
  if (!rotary->scaling) return said.hash;
  said.mix_in(static_cast<std::int64_t>(rotary->scaling->index()));
  std::visit([&](const auto& scaling) { said(scaling); }, *rotary->scaling);
  return said.hash;
}

void describe(Agreement& a, const Group& group, const Split& split, const Inputs* in,
              const Options& options) {
  a.add("the size of the group", group.size());
  const WholeCall& w = split.whole;
  a.add("whole.queries", w.queries);
  a.add("whole.keys", w.keys);
  a.add("whole.heads", w.heads);
  a.add("whole.kv_heads", w.kv_heads);
  a.add("the split, as a number,", hash_of(split));
  if (!in) a.say_no_more();
  const Inputs& said = in ? *in : Inputs{};
  a.add("q.batch", said.q.shape.batch);
  a.add("q.dim", said.q.shape.dim);
  a.add("v.dim", said.v.shape.dim);
  a.add("q.dtype", static_cast<std::int64_t>(said.q.dtype));
  describe_options(a, in ? options : Options{});
}

namespace {

struct TellOption {
  Agreement& a;

  void operator()(const OptionText& text, const std::optional<double>& number) const {
    a.add_bits(text.name, number.value_or(std::numeric_limits<double>::max()));
  }
  void operator()(const OptionText& text, const std::optional<View>& given) const {
    a.add(text.name, given.has_value(), ", 1 where it is given,");
  }
  void operator()(const OptionText& text, const std::optional<Alibi>& alibi) const {
    a.add(text.name, alibi.has_value(), ", 1 where it is given,");
    a.add("options.alibi.align, or 0,", alibi ? call::number_of(alibi->align) : 0);
  }
  void operator()(const OptionText& text, const std::optional<Dropout>& dropout) const {
    a.add_bits(text.name, dropout ? dropout->drop_probability : 0);
    a.add("options.dropout.seed", dropout ? static_cast<std::int64_t>(dropout->seed) : 0);
  }
  void operator()(const OptionText& text, const HeadMap& map) const {
    a.add(text.name, static_cast<std::int64_t>(map));
  }
  void operator()(const OptionText& text, const Masks& masks) const {
    a.add(text.name, call::number_of(masks), ", as a number,");
  }
};

}  // namespace

void describe_options(Agreement& a, const Options& options) { visit_options(options, TellOption{a}); }

}  // namespace heed::ranks
