// SPDX-License-Identifier: Apache-2.0
// See hidden_keys.hpp.
#include "hidden_keys.hpp"

#include <algorithm>

namespace heed::tool {

HiddenKeys::HiddenKeys(const ShapeOptions& options, const Extents& extents, std::int64_t batch_entry)
    : causal_(options.causal),
      window_(options.window),
      masks_(make_masks(options, extents)),
      queries_(extents.queries),
      keys_(extents.keys),
      offset_(options.align == Align::ends ? keys_ - queries_ : 0),
      entry_(batch_entry) {}

bool HiddenKeys::hides(std::int64_t query, std::int64_t key) const {
  const std::int64_t ahead = key - (query + offset_);
  if (causal_ && ahead > 0) return true;
  if (masks_.padding && masks_.padding->at(entry_, 0, 0, key)) return true;
  if (!masks_.documents.empty() && is_of_another_document(query, key)) return true;
  return window_ && (ahead > window_->right || -ahead > window_->left);
}

// A query is of the document of the key that it stands beside (S20); all batch entries may share one row of
// ids.
bool HiddenKeys::is_of_another_document(std::int64_t query, std::int64_t key) const {
  const bool is_shared = std::ssize(masks_.documents) == keys_;
  const std::int32_t* const ids = masks_.documents.data() + (is_shared ? 0 : entry_ * keys_);
  const std::int64_t own = query + offset_;
  return own < 0 || own >= keys_ || ids[own] != ids[key];
}

BoolView HiddenKeys::rows(std::int64_t first, std::int64_t count) {
  if (held_ < count * keys_) {
    held_ = count * keys_;
    hidden_ = std::make_unique<bool[]>(static_cast<std::size_t>(held_));
  }
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < keys_; ++j)
      hidden_[static_cast<std::size_t>(i * keys_ + j)] = hides(first + i, j);
  return BoolView{hidden_.get(), {.length = count, .dim = keys_}};
}

std::int64_t HiddenKeys::keys_seen(std::int64_t first, std::int64_t count) const {
  std::int64_t end = keys_;
  const std::int64_t last = first + count - 1 + offset_;
  if (causal_) end = std::min(end, last + 1);
  if (window_) end = std::min(end, last + window_->right < keys_ ? last + window_->right + 1 : keys_);
  return std::max<std::int64_t>(end, 0);
}

std::optional<std::int64_t> HiddenKeys::first_position() const {
  if (queries_ == keys_ || causal_ || window_) return offset_;
  return std::nullopt;
}

}  // namespace heed::tool
