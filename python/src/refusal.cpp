// SPDX-License-Identifier: Apache-2.0
// heed::Error becomes a Python exception with the same sentence.
#include "refusal.hpp"

#include <array>
#include <cctype>
#include <string_view>
#include <typeinfo>

namespace heed::python {

namespace {

constexpr std::array code_names{"shape",       "dtype",    "device", "value", "ambiguous", "overlap",
                                "unsupported", "capacity", "file",   "busy",  "rank"};
static_assert(code_names.size() == std::size_t{Error::rank} + 1);

// Never freed: exceptions may be raised until the interpreter is gone.
PyObject* error_type = nullptr;
PyObject* kind_error_type = nullptr;

// C++ keeps arguments in structs; in Python they are arguments themselves, some of them under names of their
// own.
struct Renamed {
  std::string_view there, here;
};
constexpr std::array renamed{Renamed{"options.", ""},
                             Renamed{"config.", ""},
                             Renamed{"inputs.", ""},
                             Renamed{"call.", ""},
                             Renamed{"query_counts", "query_lengths"},
                             Renamed{"dropout.drop_probability", "dropout"},
                             Renamed{"drop_probability", "dropout"},
                             Renamed{"saved.out", "out"},
                             Renamed{"saved.log_sum_exp", "lse"},
                             Renamed{"gradients.out", "out_gradient"},
                             Renamed{"gradients.log_sum_exp", "lse_gradient"},
                             Renamed{"gradients.q", "into[q]"},
                             Renamed{"gradients.k", "into[k]"},
                             Renamed{"gradients.v", "into[v]"},
                             Renamed{"gradients.bias", "into[bias]"},
                             Renamed{"gradients.sink", "into[sink]"}};

// Element types have other names in C++. What NumPy, PyTorch and JAX call them:
constexpr std::array types_renamed{
    Renamed{"f64", "float64"},   Renamed{"f32", "float32"}, Renamed{"f16", "float16"},
    Renamed{"bf16", "bfloat16"}, Renamed{"i64", "int64"},   Renamed{"i32", "int32"},
    Renamed{"i16", "int16"},     Renamed{"i8", "int8"},     Renamed{"u64", "uint64"},
    Renamed{"u32", "uint32"},    Renamed{"u16", "uint16"},  Renamed{"u8", "uint8"}};

// What other libraries pass there, and what to pass instead.
struct Advice {
  std::string_view begin, end, instead;
};
constexpr std::array advices{
    Advice{"window mask: ", " is negative", "; None is no limit"},
    Advice{"softcap: 0 ", " above 0", "; None is no softcap"},
    Advice{"bias.dtype: bool ", "", "; booleans are keep= (True attends) or hide= (True is ignored)"}};

bool is_word_at(const std::string& sentence, std::size_t at, std::size_t size) {
  const auto is_part = [&](std::size_t i) {
    return i < sentence.size() && (std::isalnum(static_cast<unsigned char>(sentence[i])) != 0 ||
                                   sentence[i] == '_' || sentence[i] == '.' || sentence[i] == '"');
  };
  return !(at > 0 && is_part(at - 1)) && !is_part(at + size);
}

// Of a sentence "q.dtype: f64 is none of f32, f16, bf16", which then goes on with how to pass q. Not a q of
// booleans: that is a mask, and no numbers.
std::string with_pythons_types(std::string sentence) {
  constexpr std::string_view about_type = ".dtype: ", refused = " is none of float32, float16, bfloat16";
  const std::size_t name_end = sentence.find(about_type);
  if (name_end == std::string::npos) return sentence;
  for (const auto& [there, here] : types_renamed)
    for (std::size_t at = name_end; (at = sentence.find(there, at)) != std::string::npos; at += there.size())
      if (is_word_at(sentence, at, there.size())) sentence.replace(at, there.size(), here);
  if (sentence.ends_with(refused) && sentence.find(".dtype: bool") == std::string::npos) {
    const std::size_t begin = sentence.rfind(' ', name_end) + 1;  // 0 where nothing is before it
    const std::string name = sentence.substr(begin, name_end - begin);
    sentence += "; pass " + name + ".astype(np.float32), or " + name + ".float() of PyTorch";
  }
  return sentence;
}

std::string in_python_words(std::string sentence) {
  sentence = with_pythons_types(std::move(sentence));
  for (const auto& [there, here] : renamed)
    for (std::size_t at = 0; (at = sentence.find(there, at)) != std::string::npos;)
      if (at == 0 || sentence[at - 1] == ' ')
        sentence.replace(at, there.size(), here);
      else
        ++at;
  for (const auto& [begin, end, instead] : advices)
    if (sentence.starts_with(begin) && sentence.ends_with(end)) sentence += instead;
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
  const char* characters = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) : nullptr;
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
  const nb::module_ errors = nb::module_::import_("heed._errors");
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
