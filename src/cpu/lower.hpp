// SPDX-License-Identifier: Apache-2.0
// From a Problem to the plain data that CPU kernels read.
#pragma once
#include <optional>

#include "cpu/call.hpp"
#include "problem/problem.hpp"

namespace heed::cpu {

Tensor lower(const View&);

template <class AnyView>
Tensor lower_if_given(const std::optional<AnyView>& x) {
  return x ? lower(View(*x)) : Tensor{};
}

// A Call and what it points to; the Problem must outlive it.
struct LoweredCall {
  explicit LoweredCall(const Problem&);
  LoweredCall(const Problem&, const softmax::Scaling&);
  LoweredCall(const LoweredCall&) = delete;
  LoweredCall& operator=(const LoweredCall&) = delete;

  Few<BoolTensor, 4> masks;
  Few<PagedSequence, 4> cached;
  unsigned char needs_reference = 0;  // what call.needs_reference points to
  Call call;
};

}  // namespace heed::cpu
