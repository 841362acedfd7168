// SPDX-License-Identifier: Apache-2.0
#include "layer/recorded_call.hpp"

#include <bit>
#include <variant>

#include "call/likeness.hpp"
#include "heed/option_list.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

using call::mix, call::mix_list;

// A mask by name, and the extents of a matrix.
struct InWords {
  std::string operator()(const Causal&) const { return "causal"; }
  std::string operator()(const Window&) const { return "window"; }
  std::string operator()(const KeyLengths&) const { return "key lengths"; }
  std::string operator()(const Document&) const { return "document"; }
  std::string operator()(const Keep& m) const { return "keep " + in_words(m.where.shape); }
  std::string operator()(const Hide& m) const { return "hide " + in_words(m.where.shape); }
  std::string operator()(const Tree& m) const { return "tree " + in_words(m.where.shape); }
};

std::string words_of(const Masks& masks) {
  std::string words;
  for (const Mask& mask : masks) words += (words.empty() ? "" : ", ") + std::visit(InWords(), mask);
  return words.empty() ? "none" : words;
}

}  // namespace

struct RecordedCall::Record {
  std::vector<Choice>& choices;

  void operator()(const OptionText& text, const Masks& masks) const {
    choices.push_back({text.name, words_of(masks), call::number_of(masks)});
  }
  void operator()(const OptionText& text, const HeadMap& map) const {
    choices.push_back({text.name, map == HeadMap::tiled ? "tiled" : "interleaved", 0});
  }
  void operator()(const OptionText& text, const std::optional<double>& number) const {
    choices.push_back({text.name, number ? in_words(*number) : text.otherwise ? text.otherwise : "none", 0});
  }
  void operator()(const OptionText& text, const std::optional<View>& view) const {
    choices.push_back({text.name, view ? in_words(view->shape) : "none", 0});
  }
  void operator()(const OptionText& text, const std::optional<Alibi>& alibi) const {
    if (!alibi) return choices.push_back({text.name, "none", 0});
    std::int64_t hash = call::number_of(alibi->align);
    for (const float slope : alibi->slopes) hash = mix(hash, std::bit_cast<std::int32_t>(slope));
    choices.push_back({text.name, in_words(alibi->slopes.size()) + " slopes", hash});
  }
  void operator()(const OptionText& text, const std::optional<Dropout>& dropout) const {
    choices.push_back({text.name,
                       dropout ? in_words(static_cast<float>(dropout->drop_probability)) + " with seed " +
                                     in_words(dropout->seed)
                               : "none",
                       0});
  }
  void operator()(const char* name, std::span<const std::int64_t> positions) const {
    choices.push_back({name, in_words(positions.size()) + " numbers", mix_list(0, positions)});
  }
};

RecordedCall::RecordedCall(const LayerInputs& in, const Options& options) {
  const Record record{choices_};
  visit_options(options, record);
  record("positions", in.positions);
  record("key_positions", in.key_positions);
}

void RecordedCall::check_same(const RecordedCall& earlier) const {
  for (std::size_t n = 0; n < choices_.size(); ++n) {
    const Choice &now = choices_[n], &then = earlier.choices_[n];
    if (now.words != then.words)
      throw refusal(Error::value, now.name, ": ", now.words, ", but the activations were made with ",
                    then.words);
    if (now.number != then.number)
      throw refusal(Error::value, now.name, ": ", now.words,
                    ", but with other numbers or alignments than the activations were made with");
  }
}

}  // namespace heed::layer
