// SPDX-License-Identifier: Apache-2.0
// A good call whose arrays all lie in one block of memory, ready to be spoiled in one place.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "heed/attention.hpp"

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
    return {data, shape, bhsd(shape), dtype, Device::cpu};
  }
  BoolView place_bools(const Shape& shape) {
    const auto count = static_cast<std::size_t>(shape.elements());
    return {static_cast<bool*>(std::memset(take(count), 1, count)), shape, bhsd(shape)};
  }

  void turn_into(DType dtype) {
    inputs.q.dtype = inputs.k.dtype = inputs.v.dtype = outputs.out.dtype = dtype;
  }

  const std::vector<std::byte>& memory() const { return memory_; }

  std::array<std::int32_t, 3> counts{4, 9, 9};
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
