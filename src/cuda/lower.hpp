// SPDX-License-Identifier: Apache-2.0
// From a Problem to the plain data that CUDA kernels read.
#pragma once
#include <vector>

#include "cuda/call.hpp"
#include "problem/problem.hpp"

namespace heed::cuda {

Type type_of(DType);
Type type_of(CacheType);
Tensor lower(const View&);

// A Call and the lists it points to, which are the host's: whoever launches brings them to the device first.
// Numbers lie where the Problem has them.
struct LoweredCall {
  explicit LoweredCall(const Problem&);
  LoweredCall(const LoweredCall&) = delete;
  LoweredCall& operator=(const LoweredCall&) = delete;

  std::vector<Sequence> sequences;
  std::vector<Gap> gaps;
  std::vector<BoolTensor> masks;
  std::vector<std::int64_t>
      masks_to_bring;  // for each, its bytes in the CPU's memory; 0: it lies on the device
  std::vector<cache::PagedSequence> cached;
  std::vector<float> slopes;
  std::vector<DocumentIds> documents;
  std::vector<std::vector<std::int32_t>> document_numbers;  // of keys, then of queries, for each
  std::int64_t query_rows, key_rows;  // of q and k: more than one sequence's where they are packed
  Call call;

 private:
  void copy_documents(const Problem&);
};

}  // namespace heed::cuda
