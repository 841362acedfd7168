// SPDX-License-Identifier: Apache-2.0
// No output may share a byte with itself, another output or anything that is read.
#include <array>
#include <optional>

#include "problem/checks.hpp"

namespace heed::problem {
namespace {

void check_apart_from_masks(const Argument& output, const Options& options) {
  for (const Mask& mask : options.masks) {
    if (const auto* keep = std::get_if<Keep>(&mask)) check_apart(output, {"the keep mask", keep->where});
    if (const auto* hide = std::get_if<Hide>(&mask)) check_apart(output, {"the hide mask", hide->where});
    if (const auto* tree = std::get_if<Tree>(&mask)) check_apart(output, {"the tree mask", tree->where});
    if (const auto* lengths = std::get_if<KeyLengths>(&mask))
      check_apart(output, {"the key lengths", *lengths});
  }
}

}  // namespace

void check_overlap(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  const std::array<std::optional<Argument>, 4> written{
      Argument{"out", outputs.out},
      outputs.weights ? std::optional(Argument{"weights", *outputs.weights}) : std::nullopt,
      outputs.log_sum_exp ? std::optional(Argument{"log_sum_exp", *outputs.log_sum_exp}) : std::nullopt,
      outputs.scores.into ? std::optional(Argument{"scores.into", *outputs.scores.into}) : std::nullopt};
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (!written[i]) continue;
    const Argument& output = *written[i];
    check_own_places(output);
    for (std::size_t earlier = 0; earlier < i; ++earlier)
      if (written[earlier]) check_apart(output, *written[earlier]);
    check_apart(output, {"q", inputs.q});
    if (!inputs.cache) check_apart(output, {"k", inputs.k});
    if (!inputs.cache) check_apart(output, {"v", inputs.v});
    if (options.bias) check_apart(output, {"options.bias", *options.bias});
    if (options.sink) check_apart(output, {"options.sink", *options.sink});
    check_apart_from_masks(output, options);
  }
}

}  // namespace heed::problem
