// SPDX-License-Identifier: Apache-2.0
// What lies on any device as the reference reads it: in the CPU's memory, where it is copied if it is not
// there.
#pragma once
#include <optional>

#include "reference/gathered_cache.hpp"

namespace heed::checking {

class ViewOnHost {
 public:
  ViewOnHost(const char* name, const View&);
  const View& view() const { return view_; }

 private:
  Memory memory_{};
  View view_;
};

// A problem, with plain keys and values in place of a cache.
class ProblemOnHost {
 public:
  explicit ProblemOnHost(const Problem&);
  const Problem& problem() const { return gathered_.problem; }

 private:
  reference::GatheredCache gathered_;
  ViewOnHost q_, k_, v_;
  std::optional<ViewOnHost> bias_{}, sink_{};
};

}  // namespace heed::checking
