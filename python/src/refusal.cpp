// SPDX-License-Identifier: Apache-2.0
// heed::Error becomes a Python exception with the same sentence.
#include "refusal.hpp"

#include <array>
#include <string_view>
#include <typeinfo>

namespace heed::python {

namespace {

constexpr std::array code_names{"shape",   "dtype",       "device",   "value", "ambiguous", "overlap",
                                "unsupported", "capacity", "file",  "busy", "rank"};
static_assert(code_names.size() == std::size_t{Error::rank} + 1);

// Never freed: exceptions may be raised until the interpreter is gone.
PyObject* error_type = nullptr;
PyObject* kind_error_type = nullptr;

// C++ keeps arguments in structs; in Python they are arguments themselves, some of them under names of their own.
struct Renamed {
  std::string_view there, here;
};
constexpr std::array renamed{Renamed{"options.", ""},
                             Renamed{"config.", ""},
                             Renamed{"inputs.", ""},
                             Renamed{"call.", ""},
                             Renamed{"query_counts", "query_lengths"},
                             Renamed{"saved.out", "out"},
                             Renamed{"saved.log_sum_exp", "lse"},
                             Renamed{"gradients.out", "out_gradient"},
                             Renamed{"gradients.log_sum_exp", "lse_gradient"},
                             Renamed{"gradients.q", "into[q]"},
                             Renamed{"gradients.k", "into[k]"},
                             Renamed{"gradients.v", "into[v]"},
                             Renamed{"gradients.bias", "into[bias]"},
                             Renamed{"gradients.sink", "into[sink]"}};

std::string in_python_words(std::string sentence) {
  for (const auto& [there, here] : renamed)
    for (std::size_t at = 0; (at = sentence.find(there, at)) != std::string::npos;)
      if (at == 0 || sentence[at - 1] == ' ')
        sentence.replace(at, there.size(), here);
      else
        ++at;
  return sentence;
}

}  // namespace

void raise(const Error& error) {
  const bool is_kind = error.code == Error::dtype || error.code == Error::device;
  // A sentence about a file quotes its name, which may hold any of these words and need not be UTF-8.
  const std::string sentence = error.code == Error::file ? error.what() : in_python_words(error.what());
  const nb::object text =
      nb::steal(PyUnicode_DecodeUTF8(sentence.data(), static_cast<Py_ssize_t>(sentence.size()), "replace"));
  nb::object raised = nb::borrow(is_kind ? kind_error_type : error_type)(text);
  raised.attr("code") = code_names.at(static_cast<std::size_t>(error.code));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
}

std::string kind_name(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = nb::cast<std::string>(type.attr("__module__"));
  const std::string name = nb::cast<std::string>(type.attr("__qualname__"));
  if (module == "nanobind") return PyType_Check(object.ptr()) ? "type" : "function";
  return module == "builtins" ? name : module + "." + name;
}

std::string text_of(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  const char* characters = text.is_valid() ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  if (characters) return characters;
  PyErr_Clear();
  return "(it cannot be printed)";
}

Error wrong_kind(const char* name, nb::handle object, const char* what) {
  return {Error::dtype, std::string(name) + ": " + kind_name(object) + " is not " + what};
}

Error from_python_error(const char* name, const char* what, Error::Code code) {
  nb::python_error pending;
  if (!pending.matches(PyExc_Exception)) throw pending;  // KeyboardInterrupt, SystemExit
  const std::string message = text_of(pending.value());
  return {code, std::string(name) + ": " + what + ": " + message.substr(0, message.find('\n'))};
}

void define_errors() {
  const nb::module_ errors = nb::module_::import_("heed.errors");
  error_type = nb::object(errors.attr("Error")).release().ptr();
  kind_error_type = nb::object(errors.attr("KindError")).release().ptr();
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_cast&) {
      PyErr_SetString(kind_error_type, "an argument has parts of a kind that cannot be read");
    }
  });
}

}  // namespace heed::python
