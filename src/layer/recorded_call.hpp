// SPDX-License-Identifier: Apache-2.0
// What a call of the layer was told beside its inputs. A backward pass that is handed the call's activations
// must be told the same: the gradients would be those of no call at all.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "layer/call.hpp"

namespace heed::layer {

class RecordedCall {
 public:
  RecordedCall(const LayerInputs&, const Options& completed);

  // Throws Error where the call that made the activations was told something else. Lists are compared number
  // by number; of matrices and sinks, only the extents.
  void check_same(const RecordedCall& earlier) const;

 private:
  // In words, for who is refused, and as a number, since words leave lists out.
  struct Choice {
    const char* name;
    std::string words;
    std::int64_t number;
  };
  struct Record;
  std::vector<Choice> choices_{};
};

}  // namespace heed::layer
