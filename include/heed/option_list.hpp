// SPDX-License-Identifier: Apache-2.0
// Every option of attention(), described once. Whatever lists options walks over this list: the checks of a
// call, what ranks compare, what a backward pass remembers, Python's and JAX's keywords, the tool's flags.
// Not part of heed.hpp.
#pragma once
#include <cstdint>
#include <optional>
#include <type_traits>

#include "heed/attention.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// What a number may be, where it is given.
enum class Domain : std::uint8_t { finite, positive };

struct OptionText {
  const char* name;                 // "options.softcap", as refusals have it
  const char* meaning;              // what it does to a call, as a help text has it
  const char* otherwise = nullptr;  // what holds where it is not given; null: nothing
  Domain domain = Domain::finite;   // of a number

  constexpr const char* keyword() const { return name + sizeof "options"; }  // "softcap"
};

// visit(text, option) for each option that decides what is computed, in the order in which scores are made.
// Those that only decide how (kernel, threads, executor, stream) are not visited. An option that Options has
// and this list forgets does not compile.
template <class AnyOptions, class Visit>
constexpr void visit_options(AnyOptions& options, Visit&& visit) {
  auto& [masks, bias, alibi, scale, softcap, sink, dropout, head_map, kernel, threads, executor, stream] =
      options;
  visit(OptionText{"options.masks", "Which keys a query sees"}, masks);
  visit(OptionText{"options.head_map", "Which KV head a query head reads", "interleaved"}, head_map);
  visit(
      OptionText{"options.scale", "What the product of a query and a key is multiplied with", "1/sqrt(dim)"},
      scale);
  visit(OptionText{"options.softcap", "A score s becomes c * tanh(s / c)", nullptr, Domain::positive},
        softcap);
  visit(OptionText{"options.alibi", "A score loses its head's slope times the distance of its key"}, alibi);
  visit(OptionText{"options.bias",
                   "Added to the scores; (batch, heads, queries, keys), extents of 1 broadcast"},
        bias);
  visit(OptionText{"options.sink", "One more logit in the denominator of each head's rows"}, sink);
  visit(OptionText{"options.dropout", "The probability that a weight is dropped"}, dropout);
}

// visit(text, number) for those that are numbers.
template <class AnyOptions, class Visit>
constexpr void visit_numbers(AnyOptions& options, Visit&& visit) {
  visit_options(options, [&](const OptionText& text, auto& option) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(option)>, std::optional<double>>)
      visit(text, option);
  });
}

}  // namespace HEED_NAMESPACE
