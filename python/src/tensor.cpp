// SPDX-License-Identifier: Apache-2.0
// Finds out how an object's memory is reached, and reads its description.
#include "tensor.hpp"

#include <algorithm>
#include <vector>

#include "heed/attention.hpp"
#include "openmp.hpp"

namespace heed::python {

namespace {

// Types seen before. Each is held by a weak reference, which goes when the type does: no other type can come
// to live at its address and be taken for it.
struct KnownType {
  PyTypeObject* type;
  PyObject* reference;
  Kind kind;
};
constexpr std::size_t max_known_types = 32;

std::vector<KnownType>& known_types() {
  static auto& known = *new std::vector<KnownType>;  // never freed: types go until the interpreter has gone
  return known;
}

PyObject* forget_type(PyObject*, PyObject* reference) {
  if (std::erase_if(known_types(), [=](const KnownType& entry) { return entry.reference == reference; }))
    Py_DECREF(reference);
  Py_RETURN_NONE;
}

void remember_type(PyTypeObject* type, const Kind& kind) {
  static PyMethodDef forgetting{"forget_type", forget_type, METH_O, nullptr};
  static PyObject* const forget = PyCFunction_New(&forgetting, nullptr);
  if (known_types().size() == max_known_types) return;
  PyObject* const reference = PyWeakref_NewRef(reinterpret_cast<PyObject*>(type), forget);
  if (reference)
    known_types().push_back({type, reference, kind});
  else
    PyErr_Clear();
}

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

bool is_traced(nb::handle object) {
  const nb::object jax = nb::steal(PyImport_GetModule(nb::str("jax").ptr()));
  const nb::object core = jax.is_valid() ? attribute(jax, "core") : nb::object();
  const nb::object tracer = core.is_valid() ? attribute(core, "Tracer") : nb::object();
  return tracer.is_valid() && PyObject_IsInstance(object.ptr(), tracer.ptr()) == 1;
}

// A tensor of PyTorch's whose operations are its own affair need not have the memory that it describes: it
// may stand for tensors elsewhere, or for none.
void refuse_stand_ins(const char* name, nb::handle object) {
  const nb::handle type = object.type();
  const nb::object dispatch = attribute(type, "__torch_dispatch__");
  if (dispatch.is_valid()) {
    const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
    const nb::object plain =
        torch.is_valid() ? attribute(attribute(torch, "Tensor"), "__torch_dispatch__") : nb::object();
    if (plain.is_valid() && !dispatch.is(plain))
      throw Error(
          Error::dtype,
          std::string(name) + ": " + kind_name(object) +
              " stands for other tensors, so that its memory cannot be read; pass a plain tensor, such as " +
              (attribute(object, "to_local").is_valid() ? "its to_local()" : "what it is made of"));
  }
  if (attribute(type, "_materialize").is_valid() && attribute(object, "variant").is_valid())
    throw Error(Error::dtype, std::string(name) + ": " + kind_name(object) +
                                  " is the name of a mask, without elements; say causal=, or use heed.torch");
}

// By its type, as len() and iteration are decided too; an attribute of the object alone does not count.
Kind classify(const char* name, nb::handle object) {
  if (is_traced(object))
    throw Error(Error::dtype, std::string(name) +
                                  ": JAX is tracing it (jit, grad, vmap), so that it has no memory yet; call "
                                  "heed.jax.attention there, or heed outside of the traced function");
  const nb::handle type = object.type();
  refuse_stand_ins(name, object);
  Kind kind;
  kind.has_gradients = attribute(type, "requires_grad").is_valid();
  kind.may_be_negated = attribute(type, "is_neg").is_valid() && attribute(type, "resolve_neg").is_valid();
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
  PyTypeObject* const type = Py_TYPE(object.ptr());
  for (const KnownType& entry : known_types())
    if (entry.type == type) return entry.kind;
  const Kind kind = classify(name, object);
  if (kind.has_gradients) share_openmp_threads();  // a tensor of PyTorch's, whose threads are awake
  remember_type(type, kind);
  return kind;
}

void check_gradients(const Tensor& tensor) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  const nb::object flag = nb::steal(PyObject_GetAttr(tensor.object.ptr(), requires_grad));
  if (!flag.is_valid()) PyErr_Clear();
  if (!flag.is(Py_True)) return;
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (torch.is_valid() && !nb::cast<bool>(torch.attr("is_grad_enabled")())) return;
  const std::string name = tensor.name;
  throw Error(Error::value, name + ": requires grad, which only heed.torch records; pass " + name +
                                ".detach(), or call it under torch.no_grad()");
}

// What heed writes, autograd must notice: a tensor that somebody saved for backward has changed.
void raise_version(const Tensor& tensor) {
  const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!torch.is_valid()) return;
  torch.attr("_C").attr("_increment_version")(nb::make_tuple(tensor.object));
}

// PyTorch negates some tensors only when it reads them, such as the imaginary part of a conjugate.
void resolve_sign(Tensor& tensor, Use use) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  const nb::object flag = nb::steal(PyObject_CallMethodObjArgs(tensor.object.ptr(), is_neg, nullptr));
  if (!flag.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  if (!flag.is(Py_True)) return;
  if (use == Use::write)
    throw Error(Error::value, std::string(tensor.name) +
                                  ": its negative bit is set, so that what is written would be read with "
                                  "the other sign; pass a tensor with memory of its own");
  tensor.holder = std::move(tensor.object);
  tensor.object = tensor.holder.attr("resolve_neg")();
}

bool computes_on_cuda() {
  static const bool has_kernels =
      std::ranges::any_of(kernel_names(), [](const std::string& name) { return name.starts_with("cuda."); });
  return has_kernels;
}

void read_exchange(Tensor& tensor, Where where) {
  dlpack::Tensor described{};
  if (tensor.kind.api->tensor_from_object(tensor.object.ptr(), &described) != 0)
    throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  read_dlpack_tensor(tensor, described, where);
}

// (device type, device id); an object on a device that nobody here computes on is not asked for its memory.
void read_place(Tensor& tensor, Where where) {
  const nb::object place = nb::steal(PyObject_CallMethod(tensor.object.ptr(), "__dlpack_device__", nullptr));
  if (!place.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::dtype);
  int type = 0, id = 0;
  if (!PyArg_ParseTuple(place.ptr(), "ii", &type, &id))
    throw from_python_error(tensor.name, "__dlpack_device__ is not a pair of integers", Error::dtype);
  take_place(tensor, {type, id}, where);
}

nb::object dlpack_capsule(const Tensor& tensor) {
  const nb::object method = tensor.object.attr("__dlpack__");
  const nb::object no_arguments = nb::make_tuple();
  nb::dict newest;
  newest["max_version"] = nb::make_tuple(1, 0);
  constexpr int legacy_stream =
      1;  // in DLPack's words: what it holds must be there for who comes later on it
  if (tensor.device == Device::cuda) newest["stream"] = legacy_stream;
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), no_arguments.ptr(), newest.ptr()));
  if (!capsule.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // older than DLPack 1.0
    PyErr_Clear();
    capsule = nb::steal(PyObject_CallNoArgs(method.ptr()));
  }
  if (!capsule.is_valid()) throw from_python_error(tensor.name, "cannot be read", Error::value);
  return capsule;
}

// Takes what the capsule lends, which whoever takes it must give back: not every capsule does so by itself.
template <class Managed>
const Managed& take(Tensor& tensor, const nb::object& capsule, const char* name, const char* used) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  const auto give_back = [](void* lent) noexcept {
    auto* const self = static_cast<Managed*>(lent);
    if (self->deleter) self->deleter(self);
  };
  tensor.holder = nb::capsule(managed, give_back);
  PyCapsule_SetName(capsule.ptr(), used);
  return *managed;
}

void read_dlpack(Tensor& tensor, Use use, Where where) {
  read_place(tensor, where);
  const nb::object capsule = dlpack_capsule(tensor);
  const std::string name(tensor.name);
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto& managed =
        take<dlpack::ManagedVersioned>(tensor, capsule, "dltensor_versioned", "used_dltensor_versioned");
    if (managed.version.major != 1)
      throw Error(Error::unsupported,
                  name + ": DLPack version " + std::to_string(managed.version.major) + " is not 1");
    if (use == Use::write && managed.flags & dlpack::read_only_flag)
      throw Error(Error::value, name + ": the array is read-only");
    read_dlpack_tensor(tensor, managed.tensor, where);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    const auto& managed = take<dlpack::Managed>(tensor, capsule, "dltensor", "used_dltensor");
    if (use == Use::write)  // the old layout cannot say whether it may be written
      throw Error(Error::value,
                  name + ": " + kind_name(tensor.object) + " does not say that it may be written");
    read_dlpack_tensor(tensor, managed.tensor, where);
  } else {
    throw Error(Error::value, name + ": __dlpack__ gave no unused DLPack capsule");
  }
}

void read_memory(Tensor& tensor, Use use, Where where) {
  switch (tensor.kind.source) {
    case Kind::Source::numpy:
      read_array_struct(tensor, use);
      break;
    case Kind::Source::exchange:
      read_exchange(tensor, where);
      break;
    case Kind::Source::dlpack:
      read_dlpack(tensor, use, where);
      break;
  }
}

// A tensor of PyTorch's that is known to be all zeros may have no memory; a copy of it has.
bool is_zero_tensor(const Tensor& tensor) {
  const nb::object method = attribute(tensor.object, "_is_zerotensor");
  return method.is_valid() && nb::cast<bool>(method());
}

void materialize(Tensor& tensor, Use use, Where where) {
  if (!is_zero_tensor(tensor))
    throw Error(Error::value,
                std::string(tensor.name) +
                    ": its memory is gone (a storage of 0 bytes under a shape that needs more)");
  if (use == Use::write)
    throw Error(Error::value, std::string(tensor.name) +
                                  ": a zero tensor of PyTorch's has no memory that could be written; pass "
                                  "one with memory of its own, as torch.zeros() makes it");
  tensor.object = tensor.object.attr("clone")();
  read_memory(tensor, use, where);
}

}  // namespace

bool Tensor::is_empty() const {
  return std::ranges::any_of(extents(), [](std::int64_t extent) { return extent == 0; });
}

void take_place(Tensor& tensor, const dlpack::Place& place, Where where) {
  if (place.type == dlpack::cpu || place.type == dlpack::cuda_host) return;
  const bool is_cuda = place.type == dlpack::cuda || place.type == dlpack::cuda_managed;
  if (!is_cuda || !computes_on_cuda())
    throw Error(Error::device, std::string(tensor.name) + ".device: DLPack's type " +
                                   std::to_string(place.type) + ", but this build computes on the CPU" +
                                   (computes_on_cuda() ? " and on CUDA devices only" : " only"));
  if (where == Where::cpu)
    throw Error(Error::device, std::string(tensor.name) + ".device: cuda, but it is read by the CPU");
  tensor.device = Device::cuda;
  tensor.ordinal = place.id;
}

void* current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  const dlpack::ExchangeApi* const api = tensor.kind.api;
  if (tensor.device != Device::cuda || !api || !api->current_stream) return nullptr;
  if (api->current_stream(dlpack::cuda, tensor.ordinal, &stream) != 0) throw nb::python_error();
  return stream;
}

bool has_readable_memory(nb::handle tensor) {
  const dlpack::ExchangeApi* const api = kind_of("tensor", tensor).api;
  dlpack::Tensor described{};
  if (api && api->tensor_from_object(tensor.ptr(), &described) == 0) return true;
  PyErr_Clear();
  return false;
}

Tensor read_tensor(const char* name, nb::handle object, Use use, Where where) {
  Tensor tensor;
  tensor.name = name;
  tensor.object = nb::borrow(object);
  tensor.kind = kind_of(name, object);
  if (tensor.kind.has_gradients && use != Use::copy) check_gradients(tensor);
  if (tensor.kind.may_be_negated) resolve_sign(tensor, use);
  read_memory(tensor, use, where);
  if (!tensor.data && !tensor.is_empty()) materialize(tensor, use, where);
  if (tensor.kind.has_gradients && use == Use::write) raise_version(tensor);
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
    case Element::f64:
      return DType::f64;
    default:
      throw Error(Error::dtype, std::string(tensor.name) + ".dtype: " + name_of(tensor.element) +
                                    " is none of f32, f16, bf16");
  }
}

Element element_of(DType dtype) {
  return dtype == DType::f32   ? Element::f32
         : dtype == DType::f16 ? Element::f16
         : dtype == DType::f64 ? Element::f64
                               : Element::bf16;
}

}  // namespace heed::python
