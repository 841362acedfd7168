// SPDX-License-Identifier: Apache-2.0
// See hidden_keys.hpp.
#include "hidden_keys.hpp"

#include <algorithm>
#include <cmath>
#include <variant>

namespace heed::tool {
namespace {

// Which element (b, h, i, j) is; an axis of one entry serves all.
template <class AnyView>
std::int64_t element_of(const AnyView& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  const auto along = [](std::int64_t extent, std::int64_t stride, std::int64_t n) {
    return extent == 1 ? 0 : n * stride;
  };
  return along(x.shape.batch, x.stride.batch, b) + along(x.shape.heads, x.stride.heads, h) +
         along(x.shape.length, x.stride.length, i) + along(x.shape.dim, x.stride.dim, j);
}

}  // namespace

struct HiddenKeys::Place {
  const HiddenKeys& of;
  std::int64_t head, query, key;

  std::int64_t ahead() const { return key - (query + of.offset_); }
  bool value(const BoolView& x, std::int64_t column) const {
    return x.data[element_of(x, of.entry_, head, query, column)];
  }

  bool operator()(const Causal&) const { return ahead() > 0; }
  bool operator()(const Window& m) const {
    return ahead() > m.right || (-ahead() > m.left && key >= m.front);
  }
  bool operator()(const KeyLengths& m) const { return key >= m.valid[static_cast<std::size_t>(of.entry_)]; }
  // A query is of the document of the key that it stands beside (S20); all batch entries may share one row.
  bool operator()(const Document& m) const {
    const bool is_shared = std::ssize(m.ids) == of.keys_;
    const std::int32_t* const ids = m.ids.data() + (is_shared ? 0 : of.entry_ * of.keys_);
    const std::int64_t own = query + of.offset_;
    return own < 0 || own >= of.keys_ || ids[own] != ids[key];
  }
  bool operator()(const Keep& m) const { return !value(m.where, key); }
  bool operator()(const Hide& m) const { return value(m.where, key); }
  bool operator()(const Tree& m) const {
    const std::int64_t drafted = key - (of.keys_ - of.queries_);
    return drafted >= 0 && !value(m.where, drafted);
  }
};

HiddenKeys::HiddenKeys(const ShapeOptions& options, const Extents& extents, std::int64_t batch_entry)
    : call_(make_options(options, extents)),
      causal_(options.causal),
      window_(options.window),
      queries_(extents.queries),
      keys_(extents.keys),
      heads_(extents.heads),
      offset_(options.align == Align::ends ? keys_ - queries_ : 0),
      entry_(batch_entry) {
  for (const Array& mask : call_.booleans)
    if (mask.shape.size() > 2 && mask.shape[mask.shape.size() - 3] > 1) heads_hidden_ = heads_;
}

bool HiddenKeys::hides(std::int64_t query, std::int64_t key, std::int64_t head) const {
  const Place place{*this, head, query, key};
  return std::ranges::any_of(call_.options.masks, [&](const Mask& mask) { return std::visit(place, mask); });
}

BoolView HiddenKeys::rows(std::int64_t first, std::int64_t count) {
  if (const std::int64_t needed = heads_hidden_ * count * keys_; held_ < needed) {
    held_ = needed;
    hidden_ = std::make_unique<bool[]>(static_cast<std::size_t>(held_));
  }
  bool* next = hidden_.get();
  for (std::int64_t h = 0; h < heads_hidden_; ++h)
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < keys_; ++j) *next++ = hides(first + i, j, h);
  return BoolView{hidden_.get(), {.heads = heads_hidden_, .length = count, .dim = keys_}};
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

// The masks are one matrix, and what is added to scores is another: a stretch of queries has no alignment of
// its own.
Options HiddenKeys::options_of(std::int64_t first, std::int64_t count, std::int64_t keys) {
  Options options = call_.options;
  options.masks.clear();
  if (hides_any()) {
    BoolView hidden = rows(first, count);
    hidden.shape.dim = keys;
    options.masks.emplace_back(Hide{hidden});
  }
  if (options.sink && options.sink->shape.batch > 1) {
    options.sink->data = static_cast<const float*>(options.sink->data) + entry_ * options.sink->stride.batch;
    options.sink->shape.batch = 1;
  }
  if (!options.alibi && !options.bias) return options;
  added_.emplace(Shape{1, heads_, count, keys});
  std::size_t next = 0;
  for (std::int64_t h = 0; h < heads_; ++h)
    for (std::int64_t i = first; i < first + count; ++i)
      for (std::int64_t j = 0; j < keys; ++j) added_->set(next++, added(h, i, j));
  options.alibi.reset();
  options.bias = added_->view();
  return options;
}

float HiddenKeys::added(std::int64_t head, std::int64_t query, std::int64_t key) const {
  float sum = 0;
  if (const auto& alibi = call_.options.alibi) {
    const bool is_shared = std::ssize(alibi->slopes) == heads_;
    const float slope = alibi->slopes[static_cast<std::size_t>((is_shared ? 0 : entry_ * heads_) + head)];
    sum -= slope * static_cast<float>(std::abs(key - (query + offset_)));
  }
  if (const auto& bias = call_.options.bias)
    sum += static_cast<const float*>(bias->data)[element_of(*bias, entry_, head, query, key)];
  return sum;
}

}  // namespace heed::tool
