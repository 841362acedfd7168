// SPDX-License-Identifier: Apache-2.0
// See masks.hpp.
#include "masks.hpp"

#include <fmt/core.h>

#include <utility>

#include "heed/error.hpp"
#include "heed/files.hpp"
#include "sequence.hpp"

namespace heed::tool {
namespace {

void check_is_batch_by_keys(const char* flag, const Array& array, const Extents& extents) {
  const std::vector<std::int64_t> wanted = {extents.batch, extents.keys};
  if (array.shape != wanted)
    throw Error(Error::shape, fmt::format("{}: shape {} is not (batch, keys) = {}", flag,
                                          text_of(array.shape), text_of(wanted)));
}

bool is_one_row(const Array& array, const Extents& extents) {
  return array.shape.size() == 1 && array.shape[0] == extents.keys;
}

HideMatrix read_padding(const ShapeOptions& options, const Extents& extents) {
  const Array tokens = read_npy(options.tokens);
  if (extents.batch != 1 || !is_one_row(tokens, extents)) check_is_batch_by_keys("--tokens", tokens, extents);
  return padding_mask(tokens.to_integers(), extents.batch, options.pad_id.value_or(0));
}

// One row of numbers may be every batch entry's.
std::vector<std::int32_t> read_documents(const std::string& file, const Extents& extents) {
  const Array ids = read_npy(file);
  if (!is_one_row(ids, extents)) check_is_batch_by_keys("--document", ids, extents);
  std::vector<std::int32_t> documents;
  for (const std::int64_t id : ids.to_integers()) {
    if (!std::in_range<std::int32_t>(id))
      throw Error(Error::value, fmt::format("--document: {} is not in int32's range", id));
    documents.push_back(static_cast<std::int32_t>(id));
  }
  return documents;
}

// The library refuses these too, in the words of C++.
void refuse_doubtful(const ShapeOptions& options, const Extents& extents) {
  const char* flag = options.causal              ? "--causal"
                     : options.window            ? "--window"
                     : !options.document.empty() ? "--document"
                                                 : nullptr;
  if (flag && !options.align && extents.queries != extents.keys)
    throw Error(Error::ambiguous,
                fmt::format("{}: {} queries and {} keys; say --align ends or --align starts", flag,
                            extents.queries, extents.keys));
  if (options.align && !flag)
    throw Error(Error::value, "--align: means nothing without --causal, --window or --document");
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
  if (!options.document.empty()) {
    owned.documents = read_documents(options.document, extents);
    owned.masks.push_back(Document{.ids = owned.documents, .align = options.align});
  }
  return owned;
}

}  // namespace heed::tool
