// SPDX-License-Identifier: Apache-2.0
// What heed.attention and its like are: a function of the binding library, called as it is, with the name,
// the words and the signature that inspect, help() and pickle look for. The library's own functions have no
// room for them, and a function of Python's around them would take longer than the smallest calls.
#include <Python.h>
#include <structmember.h>

#include <cstddef>

#include "bindings.hpp"
#include "refusal.hpp"

namespace heed::python {

namespace {

struct Function {
  PyObject_HEAD vectorcallfunc call;
  PyObject* target;
  PyObject* attributes;  // its __dict__
};

Function* function(PyObject* self) { return reinterpret_cast<Function*>(self); }

PyObject* call_target(PyObject* self, PyObject* const* arguments, std::size_t flagged, PyObject* names) {
  return PyObject_Vectorcall(function(self)->target, arguments, flagged, names);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(function(self)->target);
  Py_VISIT(function(self)->attributes);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(function(self)->target);
  Py_CLEAR(function(self)->attributes);
  return 0;
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// A function of no object, whichever class it is put into; and by this inspect knows a routine.
PyObject* get(PyObject* self, PyObject*, PyObject*) { return Py_NewRef(self); }

PyObject* qualified_name(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject* in_words(PyObject* self) {
  const nb::object module = nb::steal(PyObject_GetAttrString(self, "__module__"));
  const nb::object name = nb::steal(qualified_name(self, nullptr));
  return module.is_valid() && name.is_valid()
             ? PyUnicode_FromFormat("<function %U.%U>", module.ptr(), name.ptr())
             : nullptr;
}

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, nullptr},
                         {"__dictoffset__", T_PYSSIZET, offsetof(Function, attributes), READONLY, nullptr},
                         {"__wrapped__", T_OBJECT_EX, offsetof(Function, target), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};
PyMethodDef methods[] = {{"__reduce__", qualified_name, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyGetSetDef accessors[] = {{"__dict__", PyObject_GenericGetDict, nullptr, nullptr, nullptr},
                           {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                       {Py_tp_descr_get, reinterpret_cast<void*>(get)},
                       {Py_tp_repr, reinterpret_cast<void*>(in_words)},
                       {Py_tp_members, members},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, accessors},
                       {0, nullptr}};
PyType_Spec specification{
    "heed._heed.function", sizeof(Function), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    slots};

nb::object public_function(nb::handle target, const nb::dict& attributes) {
  static PyObject* const type = PyType_FromSpec(&specification);
  if (!type) throw nb::python_error();
  PyObject* const made = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0);
  if (!made) throw nb::python_error();
  function(made)->call = call_target;
  function(made)->target = Py_NewRef(target.ptr());
  function(made)->attributes = Py_NewRef(attributes.ptr());
  return nb::steal(made);
}

}  // namespace

void define_functions(nb::module_& m) {
  m.def("public_function", &public_function, nb::arg("target"), nb::arg("attributes"),
        nb::sig("def public_function(target: typing.Any, attributes: dict[str, typing.Any]) -> typing.Any"),
        "target with these attributes; heed._functions calls it.");
}

}  // namespace heed::python
