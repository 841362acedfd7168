// SPDX-License-Identifier: Apache-2.0
// See call_options.hpp.
#include "call_options.hpp"

#include <fmt/core.h>

#include <cmath>
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

// Extents of 1 before those of the file.
Shape right_aligned(const std::string& flag, const Array& array) {
  if (array.shape.size() > 4)
    throw Error(Error::shape, fmt::format("{}: shape {} has more than 4 axes", flag, text_of(array.shape)));
  std::vector<std::int64_t> axes(4 - array.shape.size(), 1);
  axes.insert(axes.end(), array.shape.begin(), array.shape.end());
  return {axes[0], axes[1], axes[2], axes[3]};
}

View read_floats(CallOptions& owned, const std::string& flag, const std::string& file) {
  const Array array = read_npy(file);
  const std::vector<float> values = floats_of(flag, array);
  Buffer& buffer = owned.numbers.emplace_back(right_aligned(flag, array));
  for (std::size_t i = 0; i < values.size(); ++i) buffer.set(i, values[i]);
  return buffer.view();
}

// (heads) or (batch, heads); the library's axes are (batch, heads, 1, 1).
View read_sink(CallOptions& owned, const std::string& flag, const std::string& file) {
  View view = read_floats(owned, flag, file);
  if (view.shape.batch == 1 && view.shape.heads == 1) {
    view.shape = {view.shape.length, view.shape.dim, 1, 1};
    view.stride = bhsd(view.shape);
  }
  return view;
}

BoolView read_booleans(CallOptions& owned, const std::string& flag, const std::string& file) {
  const Array& array = owned.booleans.emplace_back(read_npy(file));
  if (array.element != Element::boolean)
    throw Error(Error::dtype, fmt::format("{}: {} numbers are not booleans", flag, name_of(array.element)));
  const Shape shape = right_aligned(flag, array);
  return {reinterpret_cast<const bool*>(array.data.data()), shape, bhsd(shape)};
}

std::vector<std::int32_t> read_key_lengths(const std::string& file, const Extents& extents) {
  const Array counts = read_npy(file);
  if (counts.shape != std::vector<std::int64_t>{extents.batch})
    throw Error(Error::shape, fmt::format("--key-lengths: shape {} is not (batch) = ({})",
                                          text_of(counts.shape), extents.batch));
  std::vector<std::int32_t> lengths;
  for (const std::int64_t count : counts.to_integers()) {
    if (count < 0 || count > extents.keys)
      throw Error(Error::value, fmt::format("--key-lengths: {} is outside [0, {}], the keys there are", count,
                                            extents.keys));
    lengths.push_back(static_cast<std::int32_t>(count));
  }
  return lengths;
}

// Those of the paper, 2^(-8 (h + 1) / heads), where no file has others.
std::vector<float> slopes_of(const std::string& file, const Extents& extents) {
  if (!file.empty()) return floats_of("--alibi", read_npy(file));
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < extents.heads; ++h)
    slopes.push_back(
        static_cast<float>(std::exp2(-8 * static_cast<double>(h + 1) / static_cast<double>(extents.heads))));
  return slopes;
}

// The library refuses these too, in the words of C++.
void refuse_doubtful(const ShapeOptions& options, const Extents& extents) {
  const char* flag = options.causal              ? "--causal"
                     : options.window            ? "--window"
                     : !options.document.empty() ? "--document"
                     : options.alibi             ? "--alibi"
                                                 : nullptr;
  if (flag && !options.align && extents.queries != extents.keys)
    throw Error(Error::ambiguous,
                fmt::format("{}: {} queries and {} keys; say --align ends or --align starts", flag,
                            extents.queries, extents.keys));
  if (options.align && !flag)
    throw Error(Error::value, "--align: means nothing without --causal, --window, --document or --alibi");
  if (options.front && !options.window) throw Error(Error::value, "--front: means nothing without --window");
  if (options.pad_id && options.tokens.empty())
    throw Error(Error::value, "--pad-id: means nothing without --tokens");
}

void add_masks(CallOptions& owned, const ShapeOptions& options, const Extents& extents) {
  Masks& masks = owned.options.masks;
  if (options.causal) masks.push_back(Causal{.align = options.align});
  if (options.window)
    masks.push_back(Window{.left = options.window->left,
                           .right = options.window->right,
                           .align = options.align,
                           .front = options.front.value_or(0)});
  if (!options.tokens.empty()) {
    owned.padding = read_padding(options, extents);
    masks.push_back(static_cast<Hide>(*owned.padding));
  }
  if (!options.document.empty()) {
    owned.documents = read_documents(options.document, extents);
    masks.push_back(Document{.ids = owned.documents, .align = options.align});
  }
  if (!options.key_lengths.empty()) {
    owned.key_lengths = read_key_lengths(options.key_lengths, extents);
    masks.push_back(KeyLengths{owned.key_lengths});
  }
  if (!options.keep.empty()) masks.push_back(Keep{read_booleans(owned, "--keep", options.keep)});
  if (!options.hide.empty()) masks.push_back(Hide{read_booleans(owned, "--hide", options.hide)});
  if (!options.tree.empty()) masks.push_back(Tree{read_booleans(owned, "--tree", options.tree)});
}

}  // namespace

CallOptions make_options(const ShapeOptions& said, const Extents& extents) {
  refuse_doubtful(said, extents);
  CallOptions owned{.options = said.scores};
  add_masks(owned, said, extents);
  if (!said.bias.empty()) owned.options.bias = read_floats(owned, "--bias", said.bias);
  if (!said.sink.empty()) owned.options.sink = read_sink(owned, "--sink", said.sink);
  if (said.alibi) {
    owned.slopes = slopes_of(*said.alibi, extents);
    owned.options.alibi = Alibi{owned.slopes, said.align};
  }
  if (owned.options.dropout) owned.options.dropout->seed = said.seed;
  owned.options.kernel = said.kernel;
  return owned;
}

}  // namespace heed::tool
