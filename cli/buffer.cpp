// SPDX-License-Identifier: Apache-2.0
// See buffer.hpp.
#include "buffer.hpp"

#include <fmt/core.h>

#include <cstring>
#include <type_traits>

#include "heed/error.hpp"
#include "heed/half.hpp"
#include "system.hpp"

namespace heed::tool {
namespace {

template <class T>
T element_at(const std::byte* memory, std::size_t element) {
  T value;
  std::memcpy(&value, memory + element * sizeof(T), sizeof(T));
  return value;
}

template <class T>
T rounded_to(float value) {
  if constexpr (std::is_same_v<T, double>)
    return static_cast<double>(value);
  else
    return from_float<T>(value);
}

template <class T>
void put(std::byte* memory, std::size_t element, float value) {
  const T rounded = rounded_to<T>(value);
  std::memcpy(memory + element * sizeof(T), &rounded, sizeof(T));
}

}  // namespace

std::size_t checked_bytes(const Shape& shape, DType dtype) {
  std::size_t bytes = bytes_of(dtype);
  bool overflows = false;
  for (const std::int64_t extent : {shape.batch, shape.heads, shape.length, shape.dim})
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes);
  // The kernel hands out memory that it does not have and kills the process later, so ask first.
  if (overflows || bytes > physical_memory_bytes())
    throw Error(Error::capacity,
                fmt::format("a tensor of shape ({}, {}, {}, {}) exceeds this machine's memory of {} bytes",
                            shape.batch, shape.heads, shape.length, shape.dim, physical_memory_bytes()));
  return bytes;
}

Buffer::Buffer(Shape shape, DType dtype)
    : shape_(shape),
      dtype_(dtype),
      size_(checked_bytes(shape, dtype)),
      memory_(std::make_unique_for_overwrite<std::byte[]>(size_)) {}

void Buffer::set(std::size_t element, float value) {
  if (dtype_ == DType::f32) put<float>(memory_.get(), element, value);
  if (dtype_ == DType::f16) put<f16>(memory_.get(), element, value);
  if (dtype_ == DType::bf16) put<bf16>(memory_.get(), element, value);
  if (dtype_ == DType::f64) put<double>(memory_.get(), element, value);
}

void Buffer::fill(float value) {
  for (std::size_t i = 0; i < size_ / bytes_of(dtype_); ++i) set(i, value);
}

std::vector<float> Buffer::to_floats() const {
  std::vector<float> values(size_ / bytes_of(dtype_));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype_ == DType::f32) values[i] = element_at<float>(memory_.get(), i);
    if (dtype_ == DType::f16) values[i] = to_float(element_at<f16>(memory_.get(), i));
    if (dtype_ == DType::bf16) values[i] = to_float(element_at<bf16>(memory_.get(), i));
    if (dtype_ == DType::f64) values[i] = static_cast<float>(element_at<double>(memory_.get(), i));
  }
  return values;
}

}  // namespace heed::tool
