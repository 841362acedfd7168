// SPDX-License-Identifier: Apache-2.0
// See masks.hpp.
#include "masks.hpp"

#include <fmt/core.h>

#include "heed/error.hpp"
#include "heed/files.hpp"
#include "sequence.hpp"

namespace heed::tool {
namespace {

HideMatrix read_padding(const ShapeOptions& options, const Extents& extents) {
  const Array tokens = read_npy(options.tokens);
  const std::vector<std::int64_t> wanted = {extents.batch, extents.keys};
  const bool one_row = tokens.shape.size() == 1 && extents.batch == 1 && tokens.shape[0] == extents.keys;
  if (tokens.shape != wanted && !one_row)
    throw Error(Error::shape, fmt::format("--tokens: shape {} is not (batch, keys) = {}",
                                          text_of(tokens.shape), text_of(wanted)));
  return padding_mask(tokens.to_integers(), extents.batch, options.pad_id.value_or(0));
}

// The library refuses these too, in the words of C++.
void refuse_doubtful(const ShapeOptions& options, const Extents& extents) {
  const char* flag = options.causal ? "--causal" : options.window ? "--window" : nullptr;
  if (flag && !options.align && extents.queries != extents.keys)
    throw Error(Error::ambiguous,
                fmt::format("{}: {} queries and {} keys; say --align ends or --align starts", flag,
                            extents.queries, extents.keys));
  if (options.align && !flag)
    throw Error(Error::value, "--align: means nothing without --causal or --window");
  if (options.pad_id && options.tokens.empty())
    throw Error(Error::value, "--pad-id: means nothing without --tokens");
}

}  // namespace

OwnedMasks make_masks(const ShapeOptions& options, const Extents& extents) {
  refuse_doubtful(options, extents);
  OwnedMasks owned;
  if (options.causal) owned.masks.push_back(Causal{.align = options.align});
  if (options.window)
    owned.masks.push_back(
        Window{.left = options.window->left, .right = options.window->right, .align = options.align});
  if (!options.tokens.empty()) {
    owned.padding = read_padding(options, extents);
    owned.masks.push_back(static_cast<Hide>(*owned.padding));
  }
  return owned;
}

}  // namespace heed::tool
