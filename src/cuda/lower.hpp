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

// Documents that are runs of keys, each query beside the key of its number, as packed sequences: then no
// query looks at a key of another. `sequences` is empty where the call is not like that.
struct PackedDocuments {
  explicit PackedDocuments(const LoweredCall&);
  explicit PackedDocuments(const LoweredGradients&);

  std::vector<Sequence> sequences;
  std::int64_t rows = 0;  // of q and k

  // The call with sequences in place of the mask, which this must outlive.
  Call of(const Call&) const;
  GradientCall of(const GradientCall&) const;
};

}  // namespace heed::cuda
