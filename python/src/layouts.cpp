// SPDX-License-Identifier: Apache-2.0
// The two descriptions of an array's memory: NumPy's __array_struct__ and DLPack's tensor.
#include <optional>

#include "tensor.hpp"

namespace heed::python {

namespace {

// NumPy's array interface, version 3, as its documentation lays it out.
struct ArrayStruct {
  int two, rank;
  char kind;
  int item_bytes, flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int aligned_flag = 0x100, native_order_flag = 0x200, writeable_flag = 0x400;

Error wrong_rank(const Tensor& tensor, int rank) {
  return {Error::shape, std::string(tensor.name) + ": " + std::to_string(rank) + " axes are more than " +
                            std::to_string(max_axes)};
}

std::optional<Element> integer_element(int bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? Element::i8 : Element::u8;
    case 2:
      return is_signed ? Element::i16 : Element::u16;
    case 4:
      return is_signed ? Element::i32 : Element::u32;
    case 8:
      return is_signed ? Element::i64 : Element::u64;
    default:
      return std::nullopt;
  }
}

std::optional<Element> float_element(int bytes) {
  switch (bytes) {
    case 2:
      return Element::f16;
    case 4:
      return Element::f32;
    case 8:
      return Element::f64;
    default:
      return std::nullopt;
  }
}

// NumPy knows no bfloat16; ml_dtypes adds one, which the array struct calls V ("void").
bool is_bfloat16(nb::handle array) {
  static PyObject* known = nullptr;
  const nb::object dtype = array.attr("dtype");
  if (dtype.ptr() == known) return true;
  if (nb::cast<std::string>(dtype.attr("name")) != "bfloat16") return false;
  if (!known) known = nb::object(dtype).release().ptr();
  return true;
}

std::optional<Element> element_of(const ArrayStruct& from, nb::handle array) {
  switch (from.kind) {
    case 'f':
      return float_element(from.item_bytes);
    case 'b':
      return Element::boolean;
    case 'i':
    case 'u':
      return integer_element(from.item_bytes, from.kind == 'i');
    case 'V':
      return from.item_bytes == 2 && is_bfloat16(array) ? std::optional(Element::bf16) : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Element> element_of(const dlpack::Type& type) {
  if (type.lanes != 1) return std::nullopt;
  const int bytes = type.bits / 8;
  switch (type.code) {
    case dlpack::floating:
      return float_element(bytes);
    case dlpack::brain_float:
      return bytes == 2 ? std::optional(Element::bf16) : std::nullopt;
    case dlpack::boolean:
      return bytes == 1 ? std::optional(Element::boolean) : std::nullopt;
    case dlpack::integer:
    case dlpack::natural:
      return integer_element(bytes, type.code == dlpack::integer);
    default:
      return std::nullopt;
  }
}

Error unknown_element(const Tensor& tensor) {
  const nb::object dtype = nb::steal(PyObject_GetAttrString(tensor.object.ptr(), "dtype"));
  if (!dtype.is_valid()) PyErr_Clear();
  const std::string found = dtype.is_valid() ? text_of(dtype) : "what it has";
  return {Error::dtype, std::string(tensor.name) + ".dtype: " + found + " is not an element type heed knows"};
}

// False if a stride is negative or no whole number of elements, which no view of heed can describe.
bool copy_layout(Tensor& tensor, const ArrayStruct& from) {
  bool is_viewable = (from.flags & aligned_flag) != 0;
  for (int axis = 0; axis < from.rank; ++axis) {
    const auto i = static_cast<std::size_t>(axis);
    const Py_intptr_t bytes = from.strides[axis];
    tensor.shape[i] = from.shape[axis];
    tensor.stride[i] = bytes / from.item_bytes;
    is_viewable &= tensor.shape[i] <= 1 || (bytes >= 0 && bytes % from.item_bytes == 0);
  }
  return is_viewable;
}

}  // namespace

void read_array_struct(Tensor& tensor, Use use) {
  static PyObject* const attribute = PyUnicode_InternFromString("__array_struct__");
  const nb::object capsule = nb::steal(PyObject_GetAttr(tensor.object.ptr(), attribute));
  if (!capsule.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  const auto* from = PyCapsule_CheckExact(capsule.ptr())
                         ? static_cast<const ArrayStruct*>(PyCapsule_GetPointer(capsule.ptr(), nullptr))
                         : nullptr;
  if (!from || from->two != 2) {
    PyErr_Clear();
    throw Error(Error::dtype, std::string(tensor.name) + ": its __array_struct__ is not an array struct");
  }
  if (from->rank > max_axes) throw wrong_rank(tensor, from->rank);
  const std::optional<Element> element = element_of(*from, tensor.object);
  if (!element || !(from->flags & native_order_flag)) throw unknown_element(tensor);
  tensor.element = *element;
  tensor.rank = from->rank;
  tensor.data = static_cast<std::byte*>(from->data);
  if (use == Use::write && !(from->flags & writeable_flag))
    throw Error(Error::value, std::string(tensor.name) + ": the array is read-only");
  if (copy_layout(tensor, *from)) return;
  if (use == Use::write)
    throw Error(Error::shape,
                std::string(tensor.name) + ": negative, odd or unaligned strides cannot be written");
  tensor.holder = std::move(tensor.object);
  tensor.object = tensor.holder.attr("copy")();
  return read_array_struct(tensor, use);
}

void read_dlpack_tensor(Tensor& tensor, const dlpack::Tensor& from, Where where) {
  if (from.rank > max_axes || from.rank < 0) throw wrong_rank(tensor, from.rank);
  take_place(tensor, from.place, where);
  const std::optional<Element> element = element_of(from.type);
  if (!element) throw unknown_element(tensor);
  tensor.element = *element;
  tensor.rank = from.rank;
  tensor.data = from.data ? static_cast<std::byte*>(from.data) + from.byte_offset : nullptr;
  std::int64_t packed = 1;
  for (auto i = static_cast<std::size_t>(from.rank); i-- > 0;) {
    tensor.shape[i] = from.shape[i];
    tensor.stride[i] = from.strides ? from.strides[i] : packed;
    packed *= from.shape[i];
  }
}

}  // namespace heed::python
