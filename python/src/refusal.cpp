// SPDX-License-Identifier: Apache-2.0
// heed::Error becomes a Python exception with the same sentence.
#include "refusal.hpp"

#include <array>
#include <string_view>

namespace heed::python {

namespace {

constexpr std::array code_names{"shape",   "dtype",       "device",   "value", "ambiguous",
                                "overlap", "unsupported", "capacity", "file"};

// Never freed: exceptions may be raised until the interpreter is gone.
PyObject* error_type = nullptr;
PyObject* kind_error_type = nullptr;

constexpr const char* error_doc =
    "Bad input: one sentence that names the argument, the rule and what was found.\n\n"
    "``code`` is one of shape, dtype, device, value, ambiguous, overlap, unsupported, capacity, file.\n\n"
    ">>> import numpy, heed\n"
    ">>> q = numpy.zeros((1, 8, 4, 16), numpy.float32)\n"
    ">>> try:\n"
    "...     heed.attention(q, q[:, :3], q[:, :3])\n"
    "... except heed.Error as error:\n"
    "...     print(error.code, '|', error)\n"
    "shape | k.heads: 3 does not divide q.heads: 8\n";
constexpr const char* kind_error_doc =
    "An argument of the wrong kind: not an array, an element type heed does not compute in, memory of\n"
    "another device. Both a heed.Error and a TypeError.\n\n"
    ">>> import numpy, heed\n"
    ">>> q = numpy.zeros((4, 16))\n"
    ">>> try:\n"
    "...     heed.attention(q, q, q)\n"
    "... except TypeError as error:\n"
    "...     print(error)\n"
    "q.dtype: f64 is none of f32, f16, bf16\n";

// C++ keeps its choices in a struct called options; in Python they are arguments.
std::string_view in_python_words(std::string_view sentence) {
  constexpr std::string_view prefix = "options.";
  return sentence.substr(0, prefix.size()) == prefix ? sentence.substr(prefix.size()) : sentence;
}

void raise(const Error& error) {
  const bool is_kind = error.code == Error::dtype || error.code == Error::device;
  const std::string_view sentence = in_python_words(error.what());
  nb::object raised =
      nb::borrow(is_kind ? kind_error_type : error_type)(nb::str(sentence.data(), sentence.size()));
  raised.attr("code") = code_names.at(static_cast<std::size_t>(error.code));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

}  // namespace

std::string kind_name(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = nb::cast<std::string>(type.attr("__module__"));
  const std::string name = nb::cast<std::string>(type.attr("__qualname__"));
  return module == "builtins" ? name : module + "." + name;
}

Error wrong_kind(const char* name, nb::handle object, const char* what) {
  return {Error::dtype, std::string(name) + ": " + kind_name(object) + " is not " + what};
}

Error from_python_error(const char* name, const char* what, Error::Code code) {
  nb::python_error pending;
  std::string message;
  try {
    message = nb::cast<std::string>(nb::str(pending.value()));
  } catch (const std::exception&) {
    message = "no reason is given";
  }
  return {code, std::string(name) + ": " + what + ": " + message.substr(0, message.find('\n'))};
}

void define_errors(nb::module_& m) {
  nb::object attributes = nb::dict();
  error_type = PyErr_NewExceptionWithDoc("heed.Error", error_doc, PyExc_ValueError, attributes.ptr());
  nb::object bases = nb::make_tuple(nb::borrow(error_type), nb::borrow(PyExc_TypeError));
  kind_error_type =
      PyErr_NewExceptionWithDoc("heed.KindError", kind_error_doc, bases.ptr(), attributes.ptr());
  if (!error_type || !kind_error_type) throw nb::python_error();
  m.attr("Error") = nb::borrow(error_type);
  m.attr("KindError") = nb::borrow(kind_error_type);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace heed::python
