// SPDX-License-Identifier: Apache-2.0
// Which keys --causal and --window hide, a stretch of queries at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "heed/tensor.hpp"
#include "shape_options.hpp"

namespace heed::tool {

class HiddenKeys {
 public:
  // Refuses what `make_masks` refuses: lengths that differ and no --align.
  HiddenKeys(const ShapeOptions&, const Extents&);

  bool hides_any() const { return causal_ || window_; }
  bool hides(std::int64_t query, std::int64_t key) const;
  // (1, 1, rows, keys) of the queries from `first` on, true where hidden. Overwritten by the next call.
  BoolView rows(std::int64_t first, std::int64_t count);
  // One more than the last key that any of these queries sees.
  std::int64_t keys_seen(std::int64_t first, std::int64_t count) const;
  // The key at the place of the first query; none where nothing says that they are one sequence.
  std::optional<std::int64_t> first_position() const;

 private:
  bool causal_;
  std::optional<Window> window_;
  std::int64_t queries_, keys_, offset_;
  std::unique_ptr<bool[]> hidden_{};
  std::int64_t held_ = 0;
};

}  // namespace heed::tool
