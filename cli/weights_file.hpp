// SPDX-License-Identifier: Apache-2.0
// Attention weights that somebody saved, and which of them a mask had hidden.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "heed/view.hpp"
#include "hidden_keys.hpp"

namespace heed::tool {

class WeightsFile {
 public:
  // (batch, heads, queries, keys), (heads, queries, keys) or (queries, keys). The masks of `shape` hide keys,
  // whose weights must be 0; where it has none, weights that are all 0 above the diagonal are causal.
  WeightsFile(const std::string& flag, const std::string& path, std::int64_t batch_entry,
              const ShapeOptions& shape);

  std::int64_t heads() const { return extents_.heads; }
  std::int64_t queries() const { return extents_.queries; }
  std::int64_t keys() const { return extents_.keys; }
  std::optional<std::int64_t> first_position() const { return hidden_->first_position(); }
  void for_every_stretch(const std::function<void(const view::Rows&)>& use);

 private:
  view::Rows rows(std::int64_t first, std::int64_t count);
  void refuse_hidden_weights(const std::string& flag);

  Extents extents_{};
  std::vector<float> values_{};  // of one batch entry
  std::optional<HiddenKeys> hidden_{};
};

}  // namespace heed::tool
