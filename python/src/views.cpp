// SPDX-License-Identifier: Apache-2.0
// Ranks, copies and plain numbers.
#include "views.hpp"

#include <cmath>
#include <cstring>
#include <utility>

namespace heed::python {

namespace {

std::string in_words(const Tensor& tensor) {
  std::string text = "(";
  for (const std::int64_t extent : tensor.extents())
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + (tensor.rank == 1 ? ",)" : ")");
}

// Calls body(from, to) with the address of every element of the two, in row-major order.
template <class Body>
void for_each_element(const Tensor& from, const Tensor& to, Body body) {
  if (from.is_empty()) return;
  const std::size_t bytes = bytes_of(from.element);
  std::array<std::int64_t, max_axes> index{};
  const auto rank = static_cast<std::size_t>(from.rank);
  for (;;) {
    std::int64_t source = 0, target = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      source += index[i] * from.stride[i];
      target += index[i] * to.stride[i];
    }
    body(from.data + source * static_cast<std::int64_t>(bytes),
         to.data + target * static_cast<std::int64_t>(bytes));
    std::size_t axis = rank;
    while (axis > 0 && ++index[axis - 1] == from.shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

template <class T>
std::int64_t load_integer(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<std::int64_t>(value);
}

std::int64_t load_u64(const char* name, const std::byte* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  if (!std::in_range<std::int64_t>(value))
    throw Error(Error::value,
                std::string(name) + ": " + std::to_string(value) + " does not fit 64 bits and a sign");
  return static_cast<std::int64_t>(value);
}

std::int64_t load_integer(const Tensor& tensor, const std::byte* at) {
  switch (tensor.element) {
    case Element::u8:
      return load_integer<std::uint8_t>(at);
    case Element::i8:
      return load_integer<std::int8_t>(at);
    case Element::u16:
      return load_integer<std::uint16_t>(at);
    case Element::i16:
      return load_integer<std::int16_t>(at);
    case Element::u32:
      return load_integer<std::uint32_t>(at);
    case Element::i32:
      return load_integer<std::int32_t>(at);
    case Element::u64:
      return load_u64(tensor.name, at);
    default:
      return load_integer<std::int64_t>(at);
  }
}

}  // namespace

Placed right_aligned(const Tensor& tensor) {
  check_rank(tensor, 0, 4);
  std::array<std::int64_t, 4> shape{1, 1, 1, 1}, stride{0, 0, 0, 1};
  const auto rank = static_cast<std::size_t>(tensor.rank), missing = 4 - rank;
  for (std::size_t i = 0; i < rank; ++i) {
    shape[missing + i] = tensor.shape[i];
    if (tensor.shape[i] > 1) stride[missing + i] = tensor.stride[i];
  }
  return {{shape[0], shape[1], shape[2], shape[3]}, {stride[0], stride[1], stride[2], stride[3]}};
}

Placed placed_in(AxisOrder order, const Tensor& tensor) {
  Placed placed = right_aligned(tensor);
  if (order == AxisOrder::bshd && tensor.rank > 2) {
    std::swap(placed.shape.heads, placed.shape.length);
    std::swap(placed.stride.heads, placed.stride.length);
  }
  return placed;
}

std::array<std::int64_t, 4> extents_in(AxisOrder order, const Shape& s, int rank) {
  const bool has_heads_inside = order == AxisOrder::bshd && rank > 2;
  return has_heads_inside ? std::array{s.batch, s.length, s.heads, s.dim}
                          : std::array{s.batch, s.heads, s.length, s.dim};
}

Placed one_per_row(const Tensor& tensor) {
  const Placed at = right_aligned(tensor);
  return {{at.shape.heads, at.shape.length, at.shape.dim, 1},
          {at.stride.heads, at.stride.length, at.stride.dim, 1}};
}

View view_of(const Tensor& tensor, const Placed& placed) {
  return {tensor.data, placed.shape, placed.stride, dtype_of(tensor), tensor.device};
}

MutableView mutable_view_of(const Tensor& tensor, const Placed& placed) {
  return {tensor.data, placed.shape, placed.stride, dtype_of(tensor), tensor.device};
}

BoolView bool_view_of(const Tensor& tensor, const Placed& placed) {
  if (tensor.element != Element::boolean)
    throw Error(Error::dtype,
                std::string(tensor.name) + ".dtype: " + name_of(tensor.element) + " is not bool");
  return {reinterpret_cast<const bool*>(tensor.data), placed.shape, placed.stride, tensor.device};
}

void check_rank(const Tensor& tensor, int least, int most) {
  if (tensor.rank >= least && tensor.rank <= most) return;
  throw Error(Error::shape, std::string(tensor.name) + ".shape: " + in_words(tensor) + " has " +
                                std::to_string(tensor.rank) + " axes, outside [" + std::to_string(least) +
                                ", " + std::to_string(most) + "]");
}

void check_same_rank(const Tensor& tensor, const Tensor& as) {
  if (tensor.rank == as.rank) return;
  throw Error(Error::shape, std::string(tensor.name) + ".shape: " + in_words(tensor) +
                                " has not as many axes as " + as.name + ".shape: " + in_words(as));
}

heed::Array packed_copy(const Tensor& from) {
  heed::Array array{.element = from.element, .shape = {from.extents().begin(), from.extents().end()}};
  const std::size_t bytes = bytes_of(from.element);
  array.data.resize(static_cast<std::size_t>(array.elements()) * bytes);
  std::byte* end = array.data.data();
  for_each_element(from, from, [&](const std::byte* element, std::byte*) {
    std::memcpy(end, element, bytes);
    end += bytes;
  });
  return array;
}

void copy_elements(const Tensor& from, const Tensor& to) {
  const std::size_t bytes = bytes_of(from.element);
  for_each_element(
      from, to, [bytes](const std::byte* source, std::byte* target) { std::memcpy(target, source, bytes); });
}

Integers read_integers(const char* name, nb::handle object) {
  nb::object array = nb::borrow(object);
  if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object) || PyRange_Check(object.ptr())) {
    try {
      array = nb::module_::import_("numpy").attr("asarray")(object);
    } catch (nb::python_error& error) {
      error.restore();
      throw from_python_error(name, "cannot be read", Error::value);
    }
    if (nb::cast<std::int64_t>(array.attr("size")) == 0)  // NumPy makes floats of an empty list
      array = array.attr("astype")("int64");
  }
  const Tensor tensor = read_tensor(name, array);
  if (!is_integer(tensor.element))
    throw Error(Error::dtype,
                std::string(name) + ".dtype: " + name_of(tensor.element) + " is no integer type");
  Integers integers{.shape = {tensor.extents().begin(), tensor.extents().end()}};
  for_each_element(tensor, tensor, [&](const std::byte* element, std::byte*) {
    integers.values.push_back(load_integer(tensor, element));
  });
  return integers;
}

double read_double(const char* name, nb::handle object) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError);  // an integer of any size
    PyErr_Clear();
    if (!is_too_large) throw wrong_kind(name, object, "a number");
    throw Error(Error::value, std::string(name) + ": the number is not in float32's range");
  }
  return value;
}

float read_float(const char* name, nb::handle object) {
  const double value = read_double(name, object);
  const auto rounded = static_cast<float>(value);
  if (std::isinf(rounded) && !std::isinf(value))
    throw Error(Error::value, std::string(name) + ": " + text_of(object) + " is not in float32's range");
  return rounded;
}

std::int64_t read_integer(const char* name, nb::handle object) {
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    throw wrong_kind(name, object, "an integer");
  }
  const long long value = PyLong_AsLongLong(index.ptr());
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw Error(Error::value, std::string(name) + ": the integer does not fit 64 bits");
  }
  return value;
}

bool read_flag(const char* name, nb::handle object) {
  if (object.is(Py_True)) return true;
  if (object.is(Py_False)) return false;
  throw wrong_kind(name, object, "True or False");
}

std::string read_word(const char* name, nb::handle object) {
  if (!nb::isinstance<nb::str>(object)) throw wrong_kind(name, object, "a str");
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &bytes);
  if (!text) {
    PyErr_Clear();
    throw Error(Error::value, std::string(name) + ": the str is not valid Unicode");
  }
  std::string word(text, static_cast<std::size_t>(bytes));
  if (word.find('\0') != std::string::npos)  // where a sentence that quotes it would end
    throw Error(Error::value, std::string(name) + ": the str holds a NUL, which no word has");
  return word;
}

std::string read_path(const char* name, nb::handle object, const char* what) {
  PyObject* encoded = nullptr;  // bytes
  if (!PyUnicode_FSConverter(object.ptr(), &encoded)) {
    PyErr_Clear();
    throw wrong_kind(name, object, what);
  }
  const nb::object path = nb::steal(encoded);
  return PyBytes_AsString(path.ptr());
}

}  // namespace heed::python
