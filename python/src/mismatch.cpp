// SPDX-License-Identifier: Apache-2.0
// A call that fits no signature is answered in heed's words instead of the binding library's.
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "bindings.hpp"
#include "refusal.hpp"

namespace heed::python {

namespace {

// The functions of a module share a few ways to be called, one for each shape of signature. Each is kept
// here, and called by one of our own, which looks at nothing unless the call has failed.
constexpr std::size_t max_ways = 8;
std::array<vectorcallfunc, max_ways> ways{};

bool is_mismatch() {
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
  nb::python_error pending;
  const bool is_exact = pending.type().is(PyExc_TypeError);
  const std::string message = is_exact ? text_of(pending.value()) : "";
  pending.restore();
  return message.find("(): incompatible function arguments") != std::string::npos ||
         message.starts_with("nanobind::");
}

void say_in_our_words(nb::handle function, PyObject* const* arguments, std::size_t flagged,
                      nb::handle names) {
  nb::list given;
  const auto count = static_cast<std::uint32_t>(flagged);  // above it are flags, Python's and the library's
  for (std::uint32_t i = 0; i < count; ++i) given.append(nb::handle(arguments[i]));
  const nb::object signatures = function.attr("__nb_signature__");
  const nb::object keywords = names.is_valid() ? nb::borrow(names) : nb::object(nb::make_tuple());
  const nb::module_ hints = nb::module_::import_("heed._hints");
  raise({Error::dtype,
         nb::cast<std::string>(hints.attr("mismatch")(signatures[0][0], nb::tuple(given), keywords))});
}

template <std::size_t way>
PyObject* call(PyObject* function, PyObject* const* arguments, std::size_t flagged, PyObject* names) {
  PyObject* const result = ways[way](function, arguments, flagged, names);
  if (result || !is_mismatch()) return result;
  PyErr_Clear();
  try {
    say_in_our_words(function, arguments, flagged, names);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception&) {
    PyErr_SetString(PyExc_TypeError, "the arguments do not fit the signature");
  }
  return nullptr;
}

template <std::size_t... way>
constexpr std::array<vectorcallfunc, max_ways> our_calls(std::index_sequence<way...>) {
  return {call<way>...};
}
constexpr auto calls = our_calls(std::make_index_sequence<max_ways>());

// nanobind's functions begin with how they are called. The stable ABI does not tell a type's offset of it.
bool is_function_of_nanobind(nb::handle object) {
  const nb::object name = object.type().attr("__name__");
  return nb::hasattr(object, "__nb_signature__") &&
         (name.equal(nb::str("nb_func")) || name.equal(nb::str("nb_method")));
}

void answer_for(nb::handle function) {
  if (!is_function_of_nanobind(function)) return;
  char* const slot = reinterpret_cast<char*>(function.ptr()) + sizeof(PyVarObject);
  vectorcallfunc theirs = nullptr;
  std::memcpy(&theirs, slot, sizeof theirs);
  for (std::size_t way = 0; way < max_ways; ++way) {
    if (ways[way] && ways[way] != theirs) continue;
    ways[way] = theirs;
    std::memcpy(slot, &calls[way], sizeof theirs);
    return;
  }
}

}  // namespace

void answer_mismatches(nb::module_& m) {
  for (const nb::handle value : nb::cast<nb::dict>(m.attr("__dict__")).values()) {
    answer_for(value);
    if (!PyType_Check(value.ptr())) continue;
    const nb::object members = value.attr("__dict__").attr("values")();
    for (const nb::handle member : members) answer_for(member);
  }
}

Error unknown_keyword(const std::string& name, const nb::list& known) {
  const nb::module_ hints = nb::module_::import_("heed._hints");
  return {Error::dtype, nb::cast<std::string>(hints.attr("unknown_keyword")(name, known))};
}

}  // namespace heed::python
