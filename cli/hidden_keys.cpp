// SPDX-License-Identifier: Apache-2.0
// See hidden_keys.hpp.
#include "hidden_keys.hpp"

#include <algorithm>

#include "masks.hpp"

namespace heed::tool {

HiddenKeys::HiddenKeys(const ShapeOptions& options, const Extents& extents)
    : causal_(options.causal), window_(options.window), queries_(extents.queries), keys_(extents.keys) {
  make_masks(options, extents);
  offset_ = options.align == Align::ends ? keys_ - queries_ : 0;
}

bool HiddenKeys::hides(std::int64_t query, std::int64_t key) const {
  const std::int64_t ahead = key - (query + offset_);
  if (causal_ && ahead > 0) return true;
  return window_ && (ahead > window_->right || -ahead > window_->left);
}

BoolView HiddenKeys::rows(std::int64_t first, std::int64_t count) {
  if (held_ < count * keys_) {
    held_ = count * keys_;
    hidden_ = std::make_unique<bool[]>(static_cast<std::size_t>(held_));
  }
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < keys_; ++j) hidden_[static_cast<std::size_t>(i * keys_ + j)] = hides(first + i, j);
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
  if (queries_ == keys_ || hides_any()) return offset_;
  return std::nullopt;
}

}  // namespace heed::tool
