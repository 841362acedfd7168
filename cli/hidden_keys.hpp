// SPDX-License-Identifier: Apache-2.0
// Which keys --causal, --window, --tokens and --document hide, a stretch of queries of one batch entry at a
// time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "heed/tensor.hpp"
#include "masks.hpp"

namespace heed::tool {

class HiddenKeys {
 public:
  // Refuses what `make_masks` refuses: lengths that differ and no --align.
  HiddenKeys(const ShapeOptions&, const Extents&, std::int64_t batch_entry);

  bool hides_any() const { return causal_ || window_ || masks_.padding || !masks_.documents.empty(); }
  bool hides(std::int64_t query, std::int64_t key) const;
  // (1, 1, rows, keys) of the queries from `first` on, true where hidden. Overwritten by the next call.
  BoolView rows(std::int64_t first, std::int64_t count);
  // One more than the last key that any of these queries sees.
  std::int64_t keys_seen(std::int64_t first, std::int64_t count) const;
  // The key at the place of the first query; none where nothing says that they are one sequence.
  std::optional<std::int64_t> first_position() const;

 private:
  bool is_of_another_document(std::int64_t query, std::int64_t key) const;

  bool causal_;
  std::optional<Window> window_;
  OwnedMasks masks_;
  std::int64_t queries_, keys_, offset_, entry_;
  std::unique_ptr<bool[]> hidden_{};
  std::int64_t held_ = 0;
};

}  // namespace heed::tool
