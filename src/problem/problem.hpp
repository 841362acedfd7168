// SPDX-License-Identifier: Apache-2.0
// A checked call to attention(), lowered to plain data. Kernels read this and nothing else: every extent,
// stride and option here is known to be consistent, and an extent of 1 that broadcasts has become a stride of
// 0.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "heed/attention.hpp"

namespace heed {

// One Keep or Hide mask, (batch, heads, queries, keys) with stride 0 on every broadcast axis.
struct BoolMask {
  const bool* data = nullptr;
  Shape stride{};
  bool visible_when = true;  // Keep: true; Hide: false
};

struct Problem {
  // The call as it was made. The reference reads the masks here, in the words of the specification; kernels
  // do not.
  Inputs inputs{};
  Outputs outputs{};
  Options options{};

  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, dim = 0, value_dim = 0;
  float scale = 1;

  // Causal, Window and KeyLengths together: query i of batch entry b sees no key outside
  // [max(0, i + first_offset), min(key_counts[b], i + end_offset)). Offsets are clamped to +-(queries +
  // keys).
  std::int64_t first_offset = 0, end_offset = 0;
  std::vector<std::int64_t> key_counts{};  // one per batch entry, each in [0, keys]
  std::vector<BoolMask> bool_masks{};

  std::optional<View> bias{}, sink{};  // broadcast axes have stride 0

  std::int64_t kv_head(std::int64_t h) const {
    return options.head_map == HeadMap::interleaved ? h / (heads / kv_heads) : h % kv_heads;
  }
};

// Checks every argument and lowers the call, or throws Error; writes nothing either way.
Problem make_problem(const Inputs&, const Outputs&, const Options&);

}  // namespace heed
