// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a wish to end with what there is.
#pragma once
#include <exception>

#include "console.hpp"

namespace heed::tool {

// A command that catches it says what it has done.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

// While it lives SIGINT and SIGTERM are noted; a second one ends the process as it would without.
class Interruption {
 public:
  explicit Interruption(const Console&);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool came() const;
  // Ends what is under way, where it came.
  void check() const {
    if (came()) throw Interrupted();
  }

 private:
  const Console& console_;
};

}  // namespace heed::tool
