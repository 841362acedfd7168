// SPDX-License-Identifier: Apache-2.0
// See weights_file.hpp.
#include "weights_file.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "heed/files.hpp"
#include "layer_stretches.hpp"
#include "sequence.hpp"

namespace heed::tool {

WeightsFile::WeightsFile(const std::string& flag, const std::string& path, std::int64_t batch_entry,
                         const ShapeOptions& shape) {
  const Array array = read_npy(path);
  const std::size_t rank = array.shape.size();
  if (rank < 2 || rank > 4)
    throw Error(Error::shape,
                fmt::format("{}: shape {} is not (batch, heads, queries, keys), nor without the first axes",
                            flag, text_of(array.shape)));
  if (std::ranges::find(array.shape, 0) != array.shape.end())
    throw Error(Error::shape, fmt::format("{}: shape {} has no weights", flag, text_of(array.shape)));
  std::vector<std::int64_t> axes(4 - rank, 1);
  axes.insert(axes.end(), array.shape.begin(), array.shape.end());
  extents_ = {.batch = axes[0], .queries = axes[2], .keys = axes[3], .heads = axes[1], .kv_heads = axes[1]};
  if (batch_entry >= axes[0])
    throw Error(Error::value, fmt::format("--entry: {} is not below the {} batch entries of {}", batch_entry,
                                          axes[0], flag));
  const std::vector<float> all = floats_of(flag, array);
  const std::int64_t entry = axes[1] * axes[2] * axes[3];
  values_.assign(all.begin() + batch_entry * entry, all.begin() + (batch_entry + 1) * entry);
  ShapeOptions told = shape;
  const view::Rows whole = {.weights = {values_, {.heads = axes[1], .length = axes[2], .dim = axes[3]}}};
  if (!shape.causal && !shape.window) told.causal = view::looks_causal(whole.weights);
  hidden_.emplace(told, extents_, 0);
  refuse_hidden_weights(flag);
}

view::Rows WeightsFile::rows(std::int64_t first, std::int64_t count) {
  const Shape whole{.heads = heads(), .length = queries(), .dim = keys()};
  view::Rows rows{.weights = {values_, whole}};
  rows.weights.data = values_.data() + first * keys();
  rows.weights.shape.length = count;
  if (hidden_->hides_any()) rows.hidden = hidden_->rows(first, count);
  return rows;
}

void WeightsFile::refuse_hidden_weights(const std::string& flag) {
  if (!hidden_->hides_any()) return;
  for (std::int64_t row = 0; row < heads() * queries(); ++row)
    for (std::int64_t key = 0; key < keys(); ++key) {
      const float weight = values_[static_cast<std::size_t>(row * keys() + key)];
      if (weight != 0 && hidden_->hides(row % queries(), key))
        throw Error(
            Error::value,
            fmt::format("{}: head {} gives query {} the weight {} for key {}, which such a mask hides", flag,
                        row / queries(), row % queries(), weight, key));
    }
}

void WeightsFile::for_every_stretch(const std::function<void(const view::Rows&)>& use) {
  const std::int64_t stretch = stretch_of(extents_);
  for (std::int64_t first = 0; first < queries(); first += stretch)
    use(rows(first, std::min(stretch, queries() - first)));
}

}  // namespace heed::tool
