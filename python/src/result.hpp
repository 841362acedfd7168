// SPDX-License-Identifier: Apache-2.0
// Arrays made for the caller, of the caller's own kind.
#pragma once
#include <initializer_list>

#include "tensor.hpp"

namespace heed::python {

// Memory to write to first, and the Python object it becomes afterwards. The two steps differ for libraries
// whose arrays may not change once they exist (JAX).
class Result {
 public:
  // A new, packed array of `like`'s library; by NumPy if that library offers no way to make one.
  Result(const char* name, const Tensor& like, Element element, std::span<const std::int64_t> shape);
  // The caller's own array, from out=.
  Result(const char* name, nb::handle out);
  // A new NumPy array.
  Result(const char* name, Element element, std::span<const std::int64_t> shape);

  const Tensor& tensor() const { return tensor_; }
  // Every number of an array that was made here.
  void fill(float value);
  nb::object object();

 private:
  void make_numpy(nb::handle dtype);
  void make_by_exchange(const dlpack::ExchangeApi& api);
  void make_exported();
  void make_on_device(const Tensor& like);

  Tensor tensor_;
  nb::object namespace_{};  // whose from_dlpack() the finished memory is handed to
};

// (batch, heads, ...) without the leading axes that the caller's rank does not have.
std::span<const std::int64_t> last_axes(std::span<const std::int64_t> shape, int rank);

// NumPy arrays of the same names.
nb::dict numpy_arrays(const Arrays&);

void define_export(nb::module_& m);

}  // namespace heed::python
