// SPDX-License-Identifier: Apache-2.0
// A good call whose arrays all lie in one block of memory, ready to be spoiled in one place.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "heed/attention.hpp"
#include "heed/cache.hpp"

namespace heed {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

class Call {
 public:
  // Two batch entries, 8 query heads over 2 KV heads, 4 queries, 9 keys, dimensions 16 and 8.
  Call() {
    std::fill(memory_.begin(), memory_.end(), std::byte{0x3c});
    inputs = {.q = place({2, 8, 4, 16}), .k = place({2, 2, 9, 16}), .v = place({2, 2, 9, 8})};
    outputs.out = place({2, 8, 4, 8});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Each array starts where no other one is.
  MutableView place(const Shape& shape, DType dtype = DType::f32) {
    void* const data = take(static_cast<std::size_t>(shape.elements()) * bytes_of(dtype));
    return {data, shape, dtype};
  }
  BoolView place_bools(const Shape& shape) {
    const auto count = static_cast<std::size_t>(shape.elements());
    return {static_cast<bool*>(std::memset(take(count), 1, count)), shape};
  }

  // Copies of them where the view lies.
  static std::span<const std::int64_t> place_numbers(std::span<const std::int64_t> from,
                                                     const MutableView& over) {
    return {static_cast<std::int64_t*>(std::memcpy(over.data, from.data(), from.size_bytes())), from.size()};
  }

  void use_dtype(DType dtype) {
    inputs.q.dtype = inputs.k.dtype = inputs.v.dtype = outputs.out.dtype = dtype;
  }

  // Two sequences, of 4 queries over 5 keys and of 2 over 4, in one tensor each.
  void pack() {
    inputs = {.q = place({1, 8, 6, 16}), .k = place({1, 2, 9, 16}), .v = place({1, 2, 9, 8})};
    inputs.query_starts = query_starts;
    inputs.key_starts = key_starts;
    outputs.out = place({1, 8, 6, 8});
  }
  // The keys and values as two sequences of a cache.
  void keep() {
    cache.emplace(KvCacheConfig{.batch = 2, .kv_heads = 2, .capacity = 9, .dim = 16, .value_dim = 8});
    cache->append(inputs.k, inputs.v);
    inputs.k = inputs.v = {};
    inputs.cache = &*cache;
  }

  const std::vector<std::byte>& memory() const { return memory_; }

  std::array<std::int32_t, 3> counts{4, 9, 9};
  std::array<float, 8> slopes{1, 1, 1, 1, 1, 1, 1, 1};
  std::array<std::int32_t, 9> ids{1, 1, 1, 2, 2, 2, 2, 7, 7};
  std::array<std::int64_t, 3> query_starts{0, 4, 6}, key_starts{0, 5, 9}, numbers{0, 1, 2};
  std::optional<KvCache> cache{};
  Inputs inputs{};
  Outputs outputs{};
  Options options{};

 private:
  void* take(std::size_t bytes) {
    std::byte* const start = memory_.data() + used_;
    used_ += (bytes + 63) / 64 * 64;
    return used_ <= memory_.size() ? start : throw std::length_error("the block of memory is too small");
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 17);
  std::size_t used_ = 0;
};

}  // namespace heed
