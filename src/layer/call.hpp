// SPDX-License-Identifier: Apache-2.0
// One call of the layer: what is refused of it, what each projection reads, which sequences of a cache grow,
// and the heads that it makes on the way.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache/append.hpp"
#include "heed/cache.hpp"
#include "heed/layer.hpp"
#include "layer/weights.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {

// One per batch entry: its number in the cache, the tokens it held when the call began, and those it gets.
struct GrowingSequences {
  std::vector<std::int64_t> numbers{}, lengths{}, counts{}, lengths_after{};

  std::int64_t longest_after() const;
  std::vector<std::int64_t> next_positions(std::int64_t tokens) const;  // (batch, tokens)
};

// Arguments that go with a cache only, or with none.
void check_companions(const AttentionLayer::Call&, const Options&);

// The cache against the completed configuration. x must have been checked.
GrowingSequences check_cache(const LayerConfig&, const AttentionLayer::Call&);

// What each projection reads, and where every token is.
struct LayerInputs {
  View x, context, value;
  std::int64_t keys = 0;                                       // of the batch entry that has most
  GrowingSequences cached{};                                   // empty without a cache
  std::span<const std::int64_t> positions{}, key_positions{};  // empty where nothing is rotated here
  std::vector<std::int64_t> counted{};                         // where the call says nothing
  std::vector<std::int64_t> lengths{};  // per batch entry; where the rotary asks for them
};

// What a call reads, against the completed configuration, or throws Error.
LayerInputs check_read(const LayerConfig&, const AttentionLayer::Call&, const Options&);
// Where its tokens are; and that the options leave to the layer what it owns.
void place_tokens(const LayerConfig&, const AttentionLayer::Call&, const Options&, LayerInputs&);
Extents extents_of(const LayerConfig&, const LayerInputs&);

// Every argument against the completed configuration, or throws Error. What only concerns attention() is left
// to it.
LayerInputs check_call(const LayerConfig&, const AttentionLayer::Call&, const Outputs&, const Options&);

// What a call makes on the way: Q, K and V as heads, and what attention makes of them.
struct Heads {
  Floats q, k, v, attended;
  Floats log_sum_exp{};  // where backward() will ask for it
};

// (batch, heads, length, dim) as a projection writes it: heads side by side in each token's row. Of one
// dtype, but for the log-sum-exp, which is f32. Not initialised.
Heads make_heads(const LayerConfig&, const Backend&, const LayerInputs&, DType);
Floats make_log_sum_exp(const LayerConfig&, const Backend&, const LayerInputs&);

// A bias or sink need not have the dtype of the heads, so one that is not f32 is read through an f32 copy.
class FloatOptions {
 public:
  FloatOptions(const Backend&, const Options& given);
  Options options;

 private:
  Floats bias_, sink_;
};

// Tokens that are in a cache for as long as nothing goes wrong: taken back unless they are kept. While this
// lives their sequences are being read, so that nobody changes them.
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
  const cache::NewTokens tokens_;
  cache::Changing changing_;
  bool is_kept_ = false;
};

}  // namespace heed::layer
