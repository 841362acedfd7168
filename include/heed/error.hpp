// SPDX-License-Identifier: Apache-2.0
// The exception for everything that heed refuses: a code to branch on and a sentence that names the argument,
// the rule and what was found. Beside it only std::bad_alloc comes out of a call, where memory ends within
// it, and what the caller's own functions throw (Executor, Progress).
#pragma once
#include <stdexcept>
#include <string>

#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

struct HEED_API Error : std::runtime_error {
  enum Code {
    shape,        // extents that do not fit together, negative strides, a wrong rank
    dtype,        // an element type that is not accepted here
    device,       // memory of another device
    value,        // a number outside its domain: NaN scale, drop_probability 1, a key length beyond the keys
    ambiguous,    // a call with two readings: a causal mask over 4 queries and 9 keys
    overlap,      // an output that shares memory with an input, another output or itself
    unsupported,  // a kernel name that does not exist, or one that cannot take this problem
    capacity,     // no room
    file,         // a file that cannot be read or written, or whose contents break the format's rules
    busy,         // another call is at the cache right now; the same call may do later
    rank          // a rank of a group that is gone, late, or does something else than the others
  } code;
  Error(Code c, const std::string& sentence) : std::runtime_error(sentence), code(c) {}
};

}  // namespace HEED_NAMESPACE
