// SPDX-License-Identifier: Apache-2.0
#include "layer/recorded_call.hpp"

#include <bit>
#include <variant>

#include "call/likeness.hpp"
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

std::string words_of(const std::optional<View>& x) { return x ? in_words(x->shape) : "none"; }
std::string words_of(const std::optional<float>& x, const char* none) { return x ? in_words(*x) : none; }

std::string words_of(const std::optional<Dropout>& x) {
  return x ? in_words(x->drop_probability) + " with seed " + in_words(x->seed) : "none";
}

std::string words_of(const std::optional<Alibi>& x) {
  return x ? in_words(x->slopes.size()) + " slopes" : "none";
}
std::int64_t number_of(const std::optional<Alibi>& x) {
  if (!x) return 0;
  std::int64_t hash = call::number_of(x->align);
  for (const float slope : x->slopes) hash = mix(hash, std::bit_cast<std::int32_t>(slope));
  return hash;
}

std::string words_of(std::span<const std::int64_t> positions) {
  return in_words(positions.size()) + " numbers";
}

}  // namespace

RecordedCall::RecordedCall(const LayerInputs& in, const Options& o)
    : choices_{{{"options.masks", words_of(o.masks), call::number_of(o.masks)},
                {"options.bias", words_of(o.bias), 0},
                {"options.alibi", words_of(o.alibi), number_of(o.alibi)},
                {"options.scale", words_of(o.scale, "1/sqrt(head_dim)"), 0},
                {"options.softcap", words_of(o.softcap, "none"), 0},
                {"options.sink", words_of(o.sink), 0},
                {"dropout", words_of(o.dropout), 0},
                {"positions", words_of(in.positions), mix_list(0, in.positions)},
                {"key_positions", words_of(in.key_positions), mix_list(0, in.key_positions)}}} {}

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
