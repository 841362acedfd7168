// SPDX-License-Identifier: Apache-2.0
// The keys of an append on their way to the pages: as given, or turned by their positions first.
#pragma once
#include <cstdint>
#include <vector>

#include "cache/device_pages.hpp"
#include "cache/state.hpp"
#include "cache/tokens.hpp"

namespace heed::cache {

// The keys or values of an append: as given, (batch, heads, tokens, dim), or the counted tokens of all batch
// entries one after the other, (1, heads, all tokens, dim).
struct Source {
  View view;
  bool is_joined = false;

  // `before` tokens are those of the batch entries before b.
  Rows rows(std::int64_t b, std::int64_t before, std::int64_t h, std::int64_t t) const {
    return is_joined ? rows_of(view, 0, h, before + t) : rows_of(view, b, h, t);
  }
};

// Calls body(b, count, before) for every batch entry that gets tokens.
template <class Body>
void for_each_entry(const NewTokens& tokens, const Body& body) {
  for (std::int64_t b = 0, before = 0; b < tokens.k.shape.batch; before += tokens.count(b), ++b)
    if (tokens.count(b) > 0) body(b, tokens.count(b), before);
}

// The new keys turned by their positions, in f32, where the pages lie. A scaling that asks for a length goes
// by that of each sequence after the append.
class RotatedKeys {
 public:
  RotatedKeys(const State&, const NewTokens&);
  Source source() const { return source_; }

 private:
  void rotate_counted(const State&, const NewTokens&);
  void rotate_on(const DevicePages&, const State&, const NewTokens&);

  std::vector<float> floats_{};
  DeviceArray there_{};
  Source source_{};
};

}  // namespace heed::cache
