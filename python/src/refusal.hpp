// SPDX-License-Identifier: Apache-2.0
// How the binding refuses: a heed::Error, which Python sees as heed.Error or, where the kind of an argument
// is wrong, as heed.KindError.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "heed/error.hpp"

namespace heed::python {

namespace nb = nanobind;

// "list", "numpy.ndarray", "torch.Tensor"
std::string kind_name(nb::handle object);
// str(object), or a remark where even that fails.
std::string text_of(nb::handle object);
// "q: a list is not an array"; what is "an array", "a number", ...
Error wrong_kind(const char* name, nb::handle object, const char* what);
// The pending Python error as a refusal: "q: cannot be read: <its message>". Clears it.
Error from_python_error(const char* name, const char* what, Error::Code code);

// "attn_mask: there is no such keyword argument; ...", with what the function calls it.
Error unknown_keyword(const std::string& name, const nb::list& known);

// Makes it the pending Python error.
void raise(const Error& error);

void define_errors();

}  // namespace heed::python
