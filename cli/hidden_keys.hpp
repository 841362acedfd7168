// SPDX-License-Identifier: Apache-2.0
// Which keys the flags hide, a stretch of queries of one batch entry at a time, and how the others' scores
// are made.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "call_options.hpp"
#include "heed/tensor.hpp"

namespace heed::tool {

class HiddenKeys {
 public:
  // Refuses what `make_options` refuses: lengths that differ and no --align.
  HiddenKeys(const ShapeOptions&, const Extents&, std::int64_t batch_entry);

  bool hides_any() const { return !call_.options.masks.empty(); }
  bool hides(std::int64_t query, std::int64_t key, std::int64_t head = 0) const;
  // (1, 1 or heads, rows, keys) of the queries from `first` on, true where hidden. Overwritten by the next
  // call.
  BoolView rows(std::int64_t first, std::int64_t count);
  // One more than the last key that any of these queries sees.
  std::int64_t keys_seen(std::int64_t first, std::int64_t count) const;
  // The key at the place of the first query; none where nothing says that they are one sequence.
  std::optional<std::int64_t> first_position() const;
  // Those of the flags for these queries over the first `keys` keys; valid until the next call.
  Options options_of(std::int64_t first, std::int64_t count, std::int64_t keys);

 private:
  // Where one query, one key and one head meet.
  struct Place;
  float added(std::int64_t head, std::int64_t query, std::int64_t key) const;  // by ALiBi and the bias

  CallOptions call_;
  bool causal_;
  std::optional<Window> window_;
  std::int64_t queries_, keys_, heads_, offset_, entry_;
  std::int64_t heads_hidden_ = 1;  // all of them where some mask differs by head
  std::unique_ptr<bool[]> hidden_{};
  std::int64_t held_ = 0;
  std::optional<Buffer> added_{};  // (1, heads, count, keys): the bias and ALiBi of a stretch
};

}  // namespace heed::tool
