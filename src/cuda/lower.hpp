// SPDX-License-Identifier: Apache-2.0
// From a Problem to what CUDA kernels read.
#pragma once
#include <vector>

#include "cuda/call.hpp"
#include "problem/problem.hpp"

namespace heed::cuda {
using problem::lower;

// A Call and the lists it points to, which are the host's: whoever launches brings them to the device first.
// The Problem must outlive it.
struct LoweredCall {
  explicit LoweredCall(const Problem&);
  LoweredCall(const Problem&, const softmax::Scaling&);
  LoweredCall(const LoweredCall&) = delete;
  LoweredCall& operator=(const LoweredCall&) = delete;

  const Problem& problem;
  problem::LoweredProblem lowered;
  // For each boolean matrix, its bytes in the CPU's memory; 0: it lies on the device.
  std::vector<std::int64_t> masks_to_bring;
  std::vector<std::vector<std::int32_t>> document_numbers;  // of keys, then of queries, for each mask
  std::vector<std::int32_t> run_starts, run_offsets;        // of documents, where they are runs of keys
  std::int64_t query_rows, key_rows;  // of q and k: more than one sequence's where they are packed
  Call call;

 private:
  void copy_documents();
  void find_runs();
};

// The same for a backward pass. Its rows are the workspace's, and null here.
struct LoweredGradients {
  explicit LoweredGradients(const GradientProblem&);

  const GradientProblem& problem;
  LoweredCall forward;
  GradientCall call;
};

}  // namespace heed::cuda
