// SPDX-License-Identifier: Apache-2.0
// A tensor that owns its memory: what the tool hands to heed as views.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "heed/tensor.hpp"

namespace heed::tool {

// Throws Error::capacity if a tensor needs more memory than the machine has; returns its bytes.
std::size_t checked_bytes(const Shape&, DType);

class Buffer {
 public:
  // Packed, heads outside length, not initialised: pages that nobody touches cost nothing. Throws
  // Error::capacity, before asking for it, for more memory than the machine has.
  explicit Buffer(Shape, DType = DType::f32);

  const Shape& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return {memory_.get(), size_}; }
  View view() const { return {memory_.get(), shape_, dtype_}; }
  MutableView writable() { return {memory_.get(), shape_, dtype_}; }

  void set(std::size_t element, float value);  // rounds to the buffer's dtype
  void fill(float value);
  std::vector<float> to_floats() const;

 private:
  Shape shape_;
  DType dtype_;
  std::size_t size_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace heed::tool
