// SPDX-License-Identifier: Apache-2.0
// A tensor that owns its memory, for tests: any dtype, any strides, read and written element by element as
// float.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cases/counter_random.hpp"
#include "heed/half.hpp"
#include "heed/tensor.hpp"

namespace heed::cases {

// Calls visit(b, h, i, d) for every element of a shape.
template <class Visit>
void for_each(const Shape& s, Visit visit) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        for (std::int64_t d = 0; d < s.dim; ++d) visit(b, h, i, d);
}

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Shape shape, DType dtype = DType::f32) : Tensor(shape, bhsd(shape), dtype) {}
  // `lead` bytes come before the first element: 1 misaligns every element. The memory is exactly as long as
  // the strides need, so a read beyond the last element is one the sanitizer sees.
  Tensor(Shape shape, Strides stride, DType dtype, std::size_t lead = 0)
      : shape_(shape), stride_(stride), dtype_(dtype), lead_(lead) {
    const std::int64_t last = (shape.batch - 1) * stride.batch + (shape.heads - 1) * stride.heads +
                              (shape.length - 1) * stride.length + (shape.dim - 1) * stride.dim;
    const std::int64_t elements = shape.elements() == 0 ? 0 : last + 1;
    bytes_.resize(lead + static_cast<std::size_t>(elements) * bytes_of(dtype));
  }

  static Tensor random(Shape shape, std::uint64_t stream, float magnitude = 1, DType dtype = DType::f32) {
    Tensor made(shape, dtype);  // its elements lie in the order of their indices
    const auto elements = static_cast<std::uint64_t>(shape.elements());
    std::byte* to = made.bytes_.data();
    for (std::uint64_t n = 0; n < elements; ++n, to += bytes_of(dtype))
      made.write(to, uniform(stream, n) * magnitude);
    return made;
  }

  const Shape& shape() const { return shape_; }
  const Strides& stride() const { return stride_; }
  DType dtype() const { return dtype_; }
  View view() const { return {bytes_.data() + lead_, shape_, stride_, dtype_}; }
  MutableView mutable_view() { return {bytes_.data() + lead_, shape_, stride_, dtype_}; }

  // The element as it lies in memory.
  std::uint64_t bits(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    const std::byte* from = address(b, h, i, d);
    if (dtype_ == DType::f64) return load<std::uint64_t>(from);
    return dtype_ == DType::f32 ? load<std::uint32_t>(from) : load<std::uint16_t>(from);
  }
  float at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    const std::byte* from = address(b, h, i, d);
    if (dtype_ == DType::f32) return load<float>(from);
    if (dtype_ == DType::f64) return static_cast<float>(load<double>(from));
    const auto half = load<std::uint16_t>(from);
    return dtype_ == DType::f16 ? to_float(f16{half}) : to_float(bf16{half});
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, float x) {
    write(bytes_.data() + offset(b, h, i, d), x);
  }
  void fill(float x) {
    for_each(shape_, [&](auto b, auto h, auto i, auto d) { set(b, h, i, d, x); });
  }
  // Every byte, also those between the elements that a stride steps over.
  void fill_bytes(unsigned char byte) { std::fill(bytes_.begin(), bytes_.end(), std::byte{byte}); }
  const std::vector<std::byte>& memory() const { return bytes_; }

  // The same elements under other strides.
  Tensor laid_out(Strides stride, std::size_t lead = 0) const {
    Tensor made(shape_, stride, dtype_, lead);
    made.fill_bytes(0xff);  // a NaN in every dtype: what lies between the elements must not be read
    made.copy_rows(*this, 0);
    return made;
  }
  // The same elements in another dtype.
  Tensor as(DType dtype) const {
    Tensor made(shape_, dtype);
    for_each(shape_, [&](auto b, auto h, auto i, auto d) { made.set(b, h, i, d, at(b, h, i, d)); });
    return made;
  }
  // Rows [first, first + count) of the length axis, copied out.
  Tensor rows(std::int64_t first, std::int64_t count) const {
    Tensor made({shape_.batch, shape_.heads, count, shape_.dim}, dtype_);
    made.copy_rows(*this, first);
    return made;
  }

 private:
  // Of lengths that the compiler knows: one of bytes_of(dtype_) would be a call, which was most of what some
  // claims did.
  template <class T>
  static T load(const std::byte* from) {
    T found;
    std::memcpy(&found, from, sizeof found);
    return found;
  }
  template <class T>
  static void store(std::byte* to, T x) {
    std::memcpy(to, &x, sizeof x);
  }

  void write(std::byte* to, float x) {
    if (dtype_ == DType::f32) store(to, x);
    if (dtype_ == DType::f64) store(to, static_cast<double>(x));
    if (dtype_ == DType::f16) store(to, from_float<f16>(x).bits);
    if (dtype_ == DType::bf16) store(to, from_float<bf16>(x).bits);
  }

  // Every row, from the other's rows from `first` on: whole, where its elements lie side by side in both.
  void copy_rows(const Tensor& from, std::int64_t first) {
    if (shape_.elements() == 0) return;
    const bool is_whole = stride_.dim == 1 && from.stride_.dim == 1;
    const std::int64_t pieces = is_whole ? 1 : shape_.dim;
    const std::size_t bytes = bytes_of(dtype_) * static_cast<std::size_t>(is_whole ? shape_.dim : 1);
    for_each({shape_.batch, shape_.heads, shape_.length, pieces}, [&](auto b, auto h, auto i, auto d) {
      std::memcpy(bytes_.data() + offset(b, h, i, d), from.address(b, h, first + i, d), bytes);
    });
  }

  std::size_t offset(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    const std::int64_t e = b * stride_.batch + h * stride_.heads + i * stride_.length + d * stride_.dim;
    return lead_ + static_cast<std::size_t>(e) * bytes_of(dtype_);
  }
  const std::byte* address(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    return bytes_.data() + offset(b, h, i, d);
  }

  Shape shape_{0, 0, 0, 0};
  Strides stride_{};
  DType dtype_ = DType::f32;
  std::size_t lead_ = 0;
  std::vector<std::byte> bytes_{};
};

// A boolean tensor; copies share the elements.
struct BoolTensor {
  Shape shape{};
  std::shared_ptr<bool[]> data{};

  explicit BoolTensor(Shape s) : shape(s), data(new bool[static_cast<std::size_t>(s.elements())]()) {}
  bool& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return data[((b * shape.heads + h) * shape.length + i) * shape.dim + j];
  }
  // With an extent of 1 broadcast.
  bool seen(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    auto index = [](std::int64_t n, std::int64_t extent) { return extent == 1 ? 0 : n; };
    const std::int64_t row =
        (index(b, shape.batch) * shape.heads + index(h, shape.heads)) * shape.length + index(i, shape.length);
    return data[row * shape.dim + index(j, shape.dim)];
  }
  BoolView view() const { return {data.get(), shape}; }
};

}  // namespace heed::cases
