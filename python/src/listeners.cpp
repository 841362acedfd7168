// SPDX-License-Identifier: Apache-2.0
// heed.torch goes past PyTorch's dispatcher only where nobody listens to it, so that this is asked at every
// call: what PyTorch answers with is looked up once. The drop-in's questions take 0.9 us of its 9.7 (one head
// of 16 x 16 x 64, Xeon, November 2026).
#include "listeners.hpp"

#include <array>

#include "bindings.hpp"
#include "docs.hpp"
#include "tensor.hpp"

namespace heed::python {

namespace {

// Never freed: calls may come until the interpreter has gone.
struct PyTorch {
  // Functions without arguments, each of which gives 0, False or None where there is none of its kind.
  std::array<nb::object, 4> listeners;
  nb::object is_grad_enabled, is_any_autocast_enabled;
  nb::object forward_mode, profiler;  // modules, each with a global that says whether it is on
  nb::object tensor, parameter;
};

const PyTorch& pytorch() {
  static const PyTorch& found = *[] {
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object c = torch.attr("_C"), autograd = torch.attr("autograd");
    return new PyTorch{{c.attr("_len_torch_dispatch_stack"), c.attr("_len_torch_function_stack"),
                        c.attr("_is_tracing"), c.attr("_functorch").attr("peek_interpreter_stack")},
                       c.attr("is_grad_enabled"),
                       c.attr("_is_any_autocast_enabled"),
                       autograd.attr("forward_ad"),
                       autograd.attr("profiler"),
                       torch.attr("Tensor"),
                       torch.attr("nn").attr("Parameter")};
  }();
  return found;
}

nb::object checked(PyObject* answer) {
  if (!answer) throw nb::python_error();
  return nb::steal(answer);
}

bool is_true(const nb::object& answer) {
  const int truth = PyObject_IsTrue(answer.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

bool says(const nb::object& function) { return is_true(checked(PyObject_CallNoArgs(function.ptr()))); }

bool is_unwatched(const nb::tuple& objects) {
  if (is_pytorch_observed()) return false;
  for (const nb::handle object : objects)
    if (takes_part(object) || (is_tensor(object) && !has_readable_memory(object))) return false;
  return true;
}

}  // namespace

bool is_pytorch_observed() {
  static PyObject* const level = PyUnicode_InternFromString("_current_level");
  static PyObject* const is_profiling = PyUnicode_InternFromString("_is_profiler_enabled");
  const PyTorch& torch = pytorch();
  for (const nb::object& listener : torch.listeners)
    if (says(listener)) return true;
  if (is_true(checked(PyObject_GetAttr(torch.profiler.ptr(), is_profiling)))) return true;
  return nb::cast<int>(checked(PyObject_GetAttr(torch.forward_mode.ptr(), level))) >= 0;
}

bool is_any_autocast_enabled() { return says(pytorch().is_any_autocast_enabled); }

bool is_tensor(nb::handle object) {
  const PyTorch& torch = pytorch();
  return object.type().is(torch.tensor) || object.type().is(torch.parameter);
}

bool takes_part(nb::handle object) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const torch_function = PyUnicode_InternFromString("__torch_function__");
  if (object.is_none()) return false;
  if (!is_tensor(object)) return PyObject_HasAttr(object.ptr(), torch_function) != 0;
  return is_true(checked(PyObject_GetAttr(object.ptr(), requires_grad))) && says(pytorch().is_grad_enabled);
}

void define_listeners(nb::module_& m) {
  m.def("is_unwatched", &is_unwatched, nb::arg("objects"), is_unwatched_doc);
}

}  // namespace heed::python
