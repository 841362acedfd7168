// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a wish to end with what there is.
#pragma once
#include "console.hpp"

namespace heed::tool {

// While it lives SIGINT and SIGTERM are noted; a second one ends the process as it would without.
class Interruption {
 public:
  explicit Interruption(const Console&);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool came() const;

 private:
  const Console& console_;
};

}  // namespace heed::tool
