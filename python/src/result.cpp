// SPDX-License-Identifier: Apache-2.0
// Makes arrays: by NumPy, through a type's DLPack exchange, or as our own memory handed over by DLPack.
#include "result.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace heed::python {

namespace {

constexpr std::align_val_t alignment{64};  // what JAX takes without a copy

// Imported once and never freed.
nb::handle numpy(const char* name) {
  static PyObject* const module = nb::module_::import_("numpy").release().ptr();
  return nb::object(nb::handle(module).attr(name)).release();
}

nb::handle numpy_dtype(Element element) {
  static std::array<PyObject*, 16> known{};
  PyObject*& dtype = known.at(static_cast<std::size_t>(element));
  if (dtype) return dtype;
  static const nb::handle make = numpy("dtype");
  constexpr std::array names{"bool",   "uint8", "int8",    "uint16", "int16", "float16", "",
                             "uint32", "int32", "float32", "uint64", "int64", "float64"};
  const nb::object name = element == Element::bf16
                              ? nb::object(nb::module_::import_("ml_dtypes").attr("bfloat16"))
                              : nb::object(nb::str(names.at(static_cast<std::size_t>(element))));
  dtype = make(name).release().ptr();
  return dtype;
}

dlpack::Type dlpack_type(Element element) {
  const auto bits = static_cast<std::uint8_t>(8 * bytes_of(element));
  const bool is_natural =
      element == Element::u8 || element == Element::u16 || element == Element::u32 || element == Element::u64;
  const std::uint8_t code = element == Element::boolean ? dlpack::boolean
                            : element == Element::bf16  ? dlpack::brain_float
                            : is_float(element)         ? dlpack::floating
                            : is_natural                ? dlpack::natural
                                                        : dlpack::integer;
  return {code, bits, 1};
}

nb::object shape_tuple(std::span<const std::int64_t> shape) {
  nb::object tuple = nb::steal(PyTuple_New(std::ssize(shape)));
  for (std::size_t i = 0; i < shape.size(); ++i)
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  return tuple;
}

void set_shape(Tensor& tensor, std::span<const std::int64_t> shape) {
  tensor.rank = static_cast<int>(shape.size());
  std::int64_t packed = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = packed;
    if (__builtin_mul_overflow(packed, std::max<std::int64_t>(shape[i], 1), &packed))
      throw Error(Error::shape, std::string(tensor.name) + ": more elements than can be counted");
  }
}

dlpack::Tensor described(const Tensor& tensor) {
  return {.data = tensor.data,
          .place = {tensor.device == Device::cuda ? dlpack::cuda : dlpack::cpu, tensor.ordinal},
          .rank = tensor.rank,
          .type = dlpack_type(tensor.element),
          .shape = const_cast<std::int64_t*>(tensor.shape.data()),
          .strides = const_cast<std::int64_t*>(tensor.stride.data()),
          .byte_offset = 0};
}

void set_python_error(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_MemoryError, "%s: %s", kind, message);
}

// Memory of ours on its way to another library. Several capsules may share it.
struct Export {
  std::shared_ptr<std::byte> memory;
  Tensor tensor;
};

struct Lent {
  dlpack::ManagedVersioned versioned{};
  dlpack::Managed managed{};
  Export from;
};

template <class Managed>
nb::object capsule(Managed& managed, const char* name) {
  managed.deleter = [](Managed* self) { delete static_cast<Lent*>(self->context); };
  const auto destroy = [](PyObject* self) {
    const char* unused = PyCapsule_GetName(self);
    if (std::string_view(unused).starts_with("used")) return;  // whoever took it frees it
    auto* lent = static_cast<Managed*>(PyCapsule_GetPointer(self, unused));
    lent->deleter(lent);
  };
  return nb::steal(PyCapsule_New(&managed, name, destroy));
}

nb::object lend(const Export& self, nb::kwargs options) {
  auto lent = std::make_unique<Lent>();
  lent->from = self;
  lent->versioned.version = {1, 0};
  lent->versioned.context = lent->managed.context = lent.get();
  lent->versioned.tensor = lent->managed.tensor = described(lent->from.tensor);
  const bool is_versioned = options.contains("max_version") && !options["max_version"].is_none() &&
                            nb::cast<int>(options["max_version"][0]) >= 1;
  Lent& handed = *lent.release();
  return is_versioned ? capsule(handed.versioned, "dltensor_versioned") : capsule(handed.managed, "dltensor");
}

// The module whose functions make the object's arrays: what the array API standard says, or the library
// itself.
nb::object array_functions(nb::handle object) {
  if (nb::hasattr(object, "__array_namespace__")) return object.attr("__array_namespace__")();
  const auto module = nb::cast<std::string>(object.type().attr("__module__"));
  return nb::module_::import_(module.substr(0, module.find('.')).c_str());
}

}  // namespace

Result::Result(const char* name, const Tensor& like, Element element, std::span<const std::int64_t> shape) {
  tensor_.name = name;
  tensor_.element = element;
  tensor_.kind = like.kind;
  tensor_.device = like.device;
  tensor_.ordinal = like.ordinal;
  set_shape(tensor_, shape);
  const Kind::Source source = like.kind.source;
  if (source == Kind::Source::exchange) {
    make_by_exchange(*like.kind.api);
  } else if (like.device != Device::cpu) {
    make_on_device(like);
  } else if (source == Kind::Source::dlpack && nb::hasattr(like.object, "__array_namespace__")) {
    namespace_ = like.object.attr("__array_namespace__")();
    make_exported();
  } else if (source == Kind::Source::numpy && element == Element::bf16 && like.element == element) {
    make_numpy(nb::object(like.object.attr("dtype")));
  } else {
    make_numpy(numpy_dtype(element));
  }
}

Result::Result(const char* name, nb::handle out) : tensor_(read_tensor(name, out, Use::write, Where::any)) {}

Result::Result(const char* name, Element element, std::span<const std::int64_t> shape) {
  tensor_.name = name;
  tensor_.element = element;
  set_shape(tensor_, shape);
  make_numpy(numpy_dtype(element));
}

void Result::make_numpy(nb::handle dtype) {
  static const nb::handle empty = numpy("empty");
  const nb::object shape = shape_tuple(tensor_.extents());
  PyObject* const arguments[] = {shape.ptr(), dtype.ptr()};
  tensor_.object = nb::steal(PyObject_Vectorcall(empty.ptr(), arguments, 2, nullptr));
  if (!tensor_.object.is_valid()) throw nb::python_error();
  tensor_.kind = {};
  read_array_struct(tensor_, Use::write);
}

void Result::make_by_exchange(const dlpack::ExchangeApi& api) {
  dlpack::Tensor prototype = described(tensor_);
  dlpack::ManagedVersioned* managed = nullptr;
  void* object = nullptr;
  if (api.allocate(&prototype, &managed, nullptr, set_python_error) != 0) {
    if (!PyErr_Occurred()) PyErr_NoMemory();
    throw nb::python_error();
  }
  void* const data = static_cast<std::byte*>(managed->tensor.data) + managed->tensor.byte_offset;
  if (api.object_from_managed(managed, &object) != 0) throw nb::python_error();
  tensor_.object = nb::steal(static_cast<PyObject*>(object));
  tensor_.data = static_cast<std::byte*>(data);
}

void Result::make_exported() {
  std::size_t bytes = bytes_of(tensor_.element);
  for (const std::int64_t extent : tensor_.extents()) bytes *= static_cast<std::size_t>(extent);
  auto* memory = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), alignment));
  const std::shared_ptr<std::byte> owner(memory, [](std::byte* p) { ::operator delete(p, alignment); });
  tensor_.data = memory;
  tensor_.holder = nb::cast(Export{owner, tensor_});
}

void Result::make_on_device(const Tensor& like) {
  const nb::object names = array_functions(like.object);
  if (!nb::hasattr(names, "empty"))
    throw Error(Error::device, std::string(tensor_.name) + ": " + kind_name(like.object) +
                                   " offers no way to make an array on its device; pass out=");
  const nb::object dtype =
      nb::object(like.element == tensor_.element ? like.object.attr("dtype") : names.attr("float32"));
  const nb::object made = names.attr("empty")(shape_tuple(tensor_.extents()), nb::arg("dtype") = dtype);
  tensor_ = read_tensor(tensor_.name, made, Use::read, Where::any);  // it is ours to write, whatever it says
}

void Result::fill(float value) {
  if (tensor_.device != Device::cpu) {
    tensor_.object[nb::ellipsis()] = nb::float_(value);
    return;
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor_.extents()) count *= extent;
  if (tensor_.element == Element::f32)
    std::fill_n(reinterpret_cast<float*>(tensor_.data), count, value);
  else if (tensor_.element == Element::f64)
    std::fill_n(reinterpret_cast<double*>(tensor_.data), count, static_cast<double>(value));
  else if (tensor_.element == Element::f16)
    std::fill_n(reinterpret_cast<f16*>(tensor_.data), count, from_float<f16>(value));
  else
    std::fill_n(reinterpret_cast<bf16*>(tensor_.data), count, from_float<bf16>(value));
}

nb::object Result::object() {
  if (namespace_.is_valid()) return namespace_.attr("from_dlpack")(tensor_.holder);
  return std::move(tensor_.object);
}

std::span<const std::int64_t> last_axes(std::span<const std::int64_t> shape, int rank) {
  return shape.last(std::min(shape.size(), static_cast<std::size_t>(rank)));
}

nb::dict numpy_arrays(const Arrays& arrays) {
  nb::dict named;
  for (const auto& [name, array] : arrays) {
    Result result(name.c_str(), array.element, array.shape);
    if (!array.data.empty()) std::memcpy(result.tensor().data, array.data.data(), array.data.size());
    named[name.c_str()] = result.object();
  }
  return named;
}

void define_export(nb::module_& m) {
  nb::class_<Export>(m, "_Export", "Memory of heed on its way to another library, by DLPack.")
      .def("__dlpack__", &lend, nb::arg("options"),
           nb::sig("def __dlpack__(self, **options: typing.Any) -> object"))
      .def(
          "__dlpack_device__", [](const Export&) { return nb::make_tuple(dlpack::cpu, 0); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace heed::python
