// SPDX-License-Identifier: Apache-2.0
// Bytes as literals and references to what came up to 32768 bytes before: the first half of deflate.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace HEED_NAMESPACE::view {

struct Symbol {
  std::uint16_t length = 0;    // 3 to 258 bytes from before, or 0: a literal
  std::uint16_t distance = 0;  // how long before, or the literal
};

class Matches {
 public:
  explicit Matches(std::span<const std::uint8_t> bytes);
  // The next symbols, at most so many; none at the end.
  std::vector<Symbol> next(std::size_t most);

 private:
  Symbol longest_match() const;
  void remember(std::size_t place);

  std::span<const std::uint8_t> bytes_;
  std::size_t place_ = 0;
  std::vector<std::int64_t> last_{};      // by hash of three bytes: where they stood last, or -1
  std::vector<std::int64_t> previous_{};  // by place in the window: where its three bytes stood before
};

}  // namespace HEED_NAMESPACE::view
