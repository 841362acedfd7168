// SPDX-License-Identifier: Apache-2.0
// Finds out how an object's memory is reached, and reads its description.
#include "tensor.hpp"

#include <algorithm>
#include <vector>

namespace heed::python {

namespace {

struct KnownType {
  PyTypeObject* type;
  Kind kind;
};
constexpr std::size_t most_known_types = 32;

nb::object attribute(nb::handle object, const char* name) {
  nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

const dlpack::ExchangeApi* exchange_api(nb::handle type) {
  const nb::object capsule = attribute(type, "__dlpack_c_exchange_api__");
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), dlpack::exchange_capsule)) return nullptr;
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::exchange_capsule));
  while (api && api->version.major > 1) api = api->older;
  return api && api->version.major == 1 && api->tensor_from_object ? api : nullptr;
}

// By its type, as len() and iteration are decided too; an attribute of the object alone does not count.
Kind classify(const char* name, nb::handle object) {
  const nb::handle type = object.type();
  Kind kind;
  kind.has_gradients = attribute(type, "requires_grad").is_valid();
  if ((kind.api = exchange_api(type))) {
    kind.source = Kind::Source::exchange;
  } else if (attribute(type, "__array_struct__").is_valid()) {
    kind.source = Kind::Source::numpy;
    if (attribute(type, "mask").is_valid())
      throw Error(Error::dtype,
                  std::string(name) + ": " + kind_name(object) +
                      " carries a mask that would be ignored; pass its data, and the mask as hide");
  } else if (attribute(type, "__dlpack__").is_valid()) {
    kind.source = Kind::Source::dlpack;
  } else {
    throw wrong_kind(name, object, "an array (NumPy, PyTorch, JAX or anything with __dlpack__)");
  }
  return kind;
}

Kind kind_of(const char* name, nb::handle object) {
  static std::vector<KnownType> known;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  for (const KnownType& entry : known)
    if (entry.type == type) return entry.kind;
  const Kind kind = classify(name, object);
  if (known.size() < most_known_types) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that no other type can come to live at its address
    known.push_back({type, kind});
  }
  return kind;
}

bool is_true(nb::handle object, const char* name) {
  const nb::object flag = attribute(object, name);
  return flag.is_valid() && flag.is(Py_True);
}

void check_gradients(const Tensor& tensor) {
  if (!is_true(tensor.object, "requires_grad")) return;
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (torch.is_valid() && !nb::cast<bool>(torch.attr("is_grad_enabled")())) return;
  throw Error(Error::value, std::string(tensor.name) +
                                ": requires grad, which this call would not record; use heed.torch, "
                                "torch.no_grad() or detach()");
}

void read_exchange(Tensor& tensor) {
  dlpack::Tensor described{};
  if (tensor.kind.api->tensor_from_object(tensor.object.ptr(), &described) != 0)
    throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  read_dlpack_tensor(tensor, described);
}

// (device type, device id); an object that is not on the CPU is not asked for its memory.
void check_place(const Tensor& tensor) {
  const nb::object place = nb::steal(PyObject_CallMethod(tensor.object.ptr(), "__dlpack_device__", nullptr));
  if (!place.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  long type = 0, id = 0;
  if (!PyArg_ParseTuple(place.ptr(), "ll", &type, &id))
    throw from_python_error(tensor.name, "__dlpack_device__ is not a pair of integers", Error::dtype);
  if (type != dlpack::cpu && type != dlpack::cuda_host)
    throw Error(Error::device, std::string(tensor.name) + ".device: DLPack's type " + std::to_string(type) +
                                   ", but this build computes on the CPU only");
}

nb::object dlpack_capsule(const Tensor& tensor) {
  const nb::object method = tensor.object.attr("__dlpack__");
  const nb::object no_arguments = nb::make_tuple();
  nb::dict newest;
  newest["max_version"] = nb::make_tuple(1, 0);
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), no_arguments.ptr(), newest.ptr()));
  if (!capsule.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // older than DLPack 1.0
    PyErr_Clear();
    capsule = nb::steal(PyObject_CallNoArgs(method.ptr()));
  }
  if (!capsule.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::value);
  return capsule;
}

// The capsule is held and not consumed: it frees the tensor itself when it goes.
void read_dlpack(Tensor& tensor, Use use) {
  check_place(tensor);
  tensor.holder = dlpack_capsule(tensor);
  PyObject* const capsule = tensor.holder.ptr();
  const std::string name(tensor.name);
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != 1)
      throw Error(Error::unsupported,
                  name + ": DLPack version " + std::to_string(managed->version.major) + " is not 1");
    if (use == Use::write && managed->flags & dlpack::read_only_flag)
      throw Error(Error::value, name + ": the array is read-only");
    read_dlpack_tensor(tensor, managed->tensor);
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    if (use == Use::write)  // the old layout cannot say whether it may be written
      throw Error(Error::value,
                  name + ": " + kind_name(tensor.object) + " does not say that it may be written");
    read_dlpack_tensor(tensor,
                       static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor);
  } else {
    throw Error(Error::value, name + ": __dlpack__ gave no unused DLPack capsule");
  }
}

}  // namespace

bool Tensor::is_empty() const {
  return std::ranges::any_of(extents(), [](std::int64_t extent) { return extent == 0; });
}

Tensor read_tensor(const char* name, nb::handle object, Use use) {
  Tensor tensor;
  tensor.name = name;
  tensor.object = nb::borrow(object);
  tensor.kind = kind_of(name, object);
  if (tensor.kind.has_gradients && use != Use::copy) check_gradients(tensor);
  switch (tensor.kind.source) {
    case Kind::Source::numpy:
      read_array_struct(tensor, use);
      break;
    case Kind::Source::exchange:
      read_exchange(tensor);
      break;
    case Kind::Source::dlpack:
      read_dlpack(tensor, use);
      break;
  }
  if (use == Use::read && tensor.rank == 0)
    throw Error(Error::shape, std::string(name) + ": an array of 0 axes; at least one is needed");
  return tensor;
}

bool is_float(Element element) {
  return element == Element::f16 || element == Element::bf16 || element == Element::f32 ||
         element == Element::f64;
}

bool is_integer(Element element) { return element != Element::boolean && !is_float(element); }

DType dtype_of(const Tensor& tensor) {
  switch (tensor.element) {
    case Element::f32:
      return DType::f32;
    case Element::f16:
      return DType::f16;
    case Element::bf16:
      return DType::bf16;
    default:
      throw Error(Error::dtype, std::string(tensor.name) + ".dtype: " + name_of(tensor.element) +
                                    " is none of f32, f16, bf16");
  }
}

Element element_of(DType dtype) {
  return dtype == DType::f32 ? Element::f32 : dtype == DType::f16 ? Element::f16 : Element::bf16;
}

}  // namespace heed::python
