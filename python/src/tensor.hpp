// SPDX-License-Identifier: Apache-2.0
// An array that Python handed in, whatever library made it: where its elements are and how they are laid out.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "dlpack.hpp"
#include "heed/files.hpp"
#include "heed/tensor.hpp"
#include "refusal.hpp"

namespace heed::python {

constexpr int max_axes = 16;

// How the memory of objects of one Python type is reached.
struct Kind {
  enum class Source : std::uint8_t {
    numpy,     // __array_struct__
    exchange,  // __dlpack_c_exchange_api__: torch
    dlpack     // __dlpack__: everybody else
  };
  Source source = Source::numpy;
  const dlpack::ExchangeApi* api = nullptr;
  bool has_gradients = false;   // its objects have requires_grad
  bool may_be_negated = false;  // and is_neg(): their memory may hold the other sign (torch)
};

enum class Use : std::uint8_t {
  read,   // in place for as long as the call takes
  write,  // as an output
  copy    // read once and let go: a tensor that requires grad will do
};

// Whose memory will do.
enum class Where : std::uint8_t { cpu, any };

struct Tensor {
  const char* name = "";
  nb::object object{};  // what Python handed in
  nb::object holder{};  // what keeps the memory alive beside it: what DLPack lent, or what was copied
  std::byte* data = nullptr;
  int rank = 0;
  std::array<std::int64_t, max_axes> shape, stride;  // the first `rank` are set; strides in elements
  Element element = Element::f32;
  Device device = Device::cpu;
  std::int32_t ordinal = 0;  // of the device among those of its kind
  Kind kind{};

  std::span<const std::int64_t> extents() const { return {shape.data(), static_cast<std::size_t>(rank)}; }
  bool is_empty() const;
};

// Refuses what is not an array, has no axes, or cannot be used as `use` says. Copies only what no view of
// heed can describe: NumPy arrays with negative or odd strides, PyTorch tensors with the negative bit.
Tensor read_tensor(const char* name, nb::handle object, Use use = Use::read, Where where = Where::cpu);

// Whether the memory of a tensor of PyTorch's can be read: not of one that is nested, sparse or on no device,
// or that stands for others.
bool has_readable_memory(nb::handle tensor);

// Its library's current stream on the tensor's device; null on the CPU, and where the library does not say.
void* current_stream(const Tensor& tensor);

// The two layouts an array can be described in. read_tensor() chooses.
void read_array_struct(Tensor& tensor, Use use);
void read_dlpack_tensor(Tensor& tensor, const dlpack::Tensor& from, Where where);

// Notes whose memory it is. Refuses what this build does not compute on, and what the CPU could not read
// where it must.
void take_place(Tensor& tensor, const dlpack::Place& place, Where where);

bool is_float(Element element);
bool is_integer(Element element);
DType dtype_of(const Tensor& tensor);  // refuses all but f32, f16 and bf16
Element element_of(DType dtype);

}  // namespace heed::python
