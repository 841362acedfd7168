// SPDX-License-Identifier: Apache-2.0
// Kernels beside attention, on a stream: arrays element by element, tokens into the pages of a cache and out
// of them.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

struct ArrayShape {
  std::int64_t batch, heads, length, dim;
  constexpr std::int64_t elements() const { return batch * heads * length * dim; }
};

void launch_copy(const Tensor& from, const Tensor& into, const ArrayShape&, Stream);
// Rows of 16 bits each into rows of `width`, which zeros fill up.
void launch_copy_rows(const Tensor& from, const Tensor& into, const ArrayShape&, std::int64_t width, Stream);
void launch_add(const Tensor& from, const Tensor& into, const ArrayShape&, Stream);  // rounded once
// `into` has this shape with one head, the average of `heads`.
void launch_average(const Tensor& from, const Tensor& into, const ArrayShape&, std::int64_t heads, Stream);
void launch_fill(const Tensor& into, const ArrayShape&, float, Stream);

// A finished row: its output and log-sum-exp.
struct FinishedRows {
  Tensor out, log_sum_exp;
};
void launch_merge(const FinishedRows& into, const FinishedRows& other, const ArrayShape&, Stream);

// A pair of a token is rotated by (cosine, sine).
struct Rotation {
  float cosine, sine;
};
// Rotations lie on the device, (batch, length, pairs), or (length, pairs) where entries share them.
struct Rotations {
  const Rotation* first;
  bool are_shared;
  std::int64_t pairs;
  std::int64_t next, apart;  // dimensions from a pair to the next, and within one
};
void launch_rotate(const Tensor& x, const ArrayShape&, const Rotations&, Stream);

// One side of pages, and the caller's tensor over (batch, kv_heads, tokens, dim).
struct PageTokens {
  cache::PageLayout layout;
  Type type;  // of the elements of a page
  bool are_values;
  Tensor tensor;
  const cache::TokenRun* runs;         // on the device
  std::int64_t run_count, max_tokens;  // max_tokens: of a run
};

void launch_store(const PageTokens&, Stream);
void launch_fetch(const PageTokens&, Stream);

// Lowers *first to head * tokens + token of the first token of batch entry b with a number that is not
// finite.
struct FiniteCheck {
  Tensor tensor;
  std::int64_t b, heads, tokens, dim;
};
void launch_find_not_finite(const FiniteCheck&, unsigned long long* first, Stream);

}  // namespace heed::cuda
