// SPDX-License-Identifier: Apache-2.0
// The messages of a group, carried by an object of Python's: heed.distributed has such objects for mpi4py and
// for torch.distributed.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "heed/group.hpp"

namespace heed::python {

// Of an object with rank, size, send(to, memory, step), receive(from, memory, step) and abort(why). The two
// in the middle return one with is_done() and drop(). They are called with the GIL, from a thread that has
// released it.
std::unique_ptr<Messages> python_messages(nanobind::object);

// What Python raised: "KeyboardInterrupt", "RuntimeError: it is too long".
std::string in_words(const nanobind::python_error&);

// Once: what a handler of a signal raised during a message comes out of the call as it is.
void define_python_messages();

}  // namespace heed::python
