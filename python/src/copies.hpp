// SPDX-License-Identifier: Apache-2.0
// copy.deepcopy() and pickle for a class: what is copied is made by the class's own checked ways.
#pragma once
#include <new>
#include <utility>

#include "refusal.hpp"

namespace heed::python {

// An object of this class, which is T's or one that Python made of it, with a T inside that is `made`.
template <class T>
nb::object object_of(nb::handle cls, T made) {
  nb::object object = nb::inst_alloc(cls);
  new (nb::inst_ptr<T>(object)) T(std::move(made));
  nb::inst_mark_ready(object);
  return object;
}

// A pickle may name any class.
template <class T>
void check_class(nb::handle cls, const char* name) {
  const nb::handle own = nb::type<T>();
  if (PyType_Check(cls.ptr()) && PyObject_IsSubclass(cls.ptr(), own.ptr()) == 1) return;
  throw Error(Error::dtype, "cls: " + text_of(nb::repr(cls)) + " is not " + name + " or a class made of it");
}

// What Python keeps beside the T in an object of a class of its own; None where that is nothing.
inline nb::object attributes_of(nb::handle self) { return nb::getattr(self, "__dict__", nb::none()); }

// (restored, (class, state), attributes), as __reduce__ returns it. `restored` is of heed._copies: pickle
// finds functions of Python's only.
inline nb::tuple reduced(nb::handle self, const char* restored, const nb::object& state) {
  const nb::object function = nb::module_::import_("heed._copies").attr(restored);
  return nb::make_tuple(function, nb::make_tuple(self.type(), state), attributes_of(self));
}

// `copied` with deep copies of self's attributes. The memo knows it first: they may lead back to self.
inline nb::object deep_copied(nb::handle self, nb::dict memo, nb::object copied) {
  memo[nb::steal(PyLong_FromVoidPtr(self.ptr()))] = copied;
  const nb::object attributes = attributes_of(self);
  if (!attributes.is_none())
    copied.attr("__dict__").attr("update")(nb::module_::import_("copy").attr("deepcopy")(attributes, memo));
  return copied;
}

}  // namespace heed::python
