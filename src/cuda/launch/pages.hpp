// SPDX-License-Identifier: Apache-2.0
// Tokens on their way into a cache's pages and out of them, on a stream.
#pragma once
#include <cstdint>

#include "cache/layout.hpp"
#include "cuda/call.hpp"
#include "cuda/launch/launch.hpp"

namespace heed::cuda {

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
