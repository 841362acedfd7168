// SPDX-License-Identifier: Apache-2.0
// Tokens that are in a cache for as long as nothing goes wrong: taken back unless they are kept. While this
// lives the cache is being read, so that nobody changes it.
#pragma once
#include "layer/cached_call.hpp"

namespace heed::layer {

class AppendedTokens {
 public:
  // k and v are (batch, kv_heads, tokens, ...) in f32; of entry b its first counts[b] tokens are appended.
  // Throws Error and leaves the cache as it was.
  AppendedTokens(KvCache&, const GrowingSequences&, const View& k, const View& v);
  ~AppendedTokens();
  AppendedTokens(const AppendedTokens&) = delete;
  AppendedTokens& operator=(const AppendedTokens&) = delete;

  void keep() noexcept { is_kept_ = true; }

 private:
  cache::State& state_;
  const GrowingSequences& sequences_;
  bool is_kept_ = false;
};

}  // namespace heed::layer
