// SPDX-License-Identifier: Apache-2.0
// From a Problem to what CPU kernels read.
#pragma once
#include "cpu/call.hpp"
#include "problem/lower.hpp"

namespace heed::cpu {
using problem::lower, problem::lower_if_given;

// A Call and what it points to; the Problem must outlive it.
struct LoweredCall {
  explicit LoweredCall(const Problem& p) : lowered(p), call{lowered.call} {
    call.needs_reference = &needs_reference;
  }
  LoweredCall(const Problem& p, const softmax::Scaling& scaling) : lowered(p, scaling), call{lowered.call} {
    call.needs_reference = &needs_reference;
  }
  LoweredCall(const LoweredCall&) = delete;
  LoweredCall& operator=(const LoweredCall&) = delete;

  problem::LoweredProblem lowered;
  unsigned char needs_reference = 0;  // what call.needs_reference points to
  Call call;
};

}  // namespace heed::cpu
