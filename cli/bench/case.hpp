// SPDX-License-Identifier: Apache-2.0
// The things that `heed bench` times, and how much work each is. cases.txt lists their names.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "heed/cache.hpp"
#include "heed/layer.hpp"
#include "heed/tensor.hpp"

namespace heed::tool {

enum class Role : std::uint8_t {
  prefill,     // attention() with as many queries as keys
  decode,      // attention() with one query
  backward,    // attention_backward() by q, k and v, of a prefill
  layer,       // AttentionLayer of model_dim = heads * dim
  projection,  // one linear map of model_dim x model_dim over `batch` rows
  cache,       // attention() with one query per sequence of a KvCache, or several
  step         // AttentionLayer with one new token, the last of a sequence in a KvCache
};
const char* name_of(Role);

// What stands between a query and the keys: nothing; a causal mask; a bias, or a boolean mask that hides one
// key in eight, for every query and key, shared by batch and heads.
enum class Between : std::uint8_t { nothing, causal, bias, keep };
const char* name_of(Between);

constexpr int projections_per_run = 4;  // a projection is timed as the four of a layer

struct Case {
  Role role = Role::prefill;
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, dim = 1;
  Between between = Between::nothing;

  // Of a cache or a step: how tokens are kept, and whether sequences differ in length; `keys` is then their
  // average.
  CacheType stored = CacheType::f32;
  std::int64_t page_size = 0;  // 0: contiguous
  bool is_mixed = false;

  bool is_cached() const { return role == Role::cache || role == Role::step; }
  KvCacheConfig cache_config() const;
  std::int64_t length_of(std::int64_t sequence) const;  // tokens in the cache when the query is asked
  std::int64_t model_dim() const { return heads * dim; }
  LayerConfig layer_config() const { return grouped_query(model_dim(), heads, kv_heads); }
  // "prefill/bf16/1x32x8x4096x4096x128/causal": batch, heads, KV heads, queries, keys, dim; or
  // "projection/f32/2048x768x768": rows, outputs, inputs; or "cache/int8/1x32x8x1x32768x128/paged64",
  // "cache/bf16/64x32x8x1x512x128/mixed".
  static Case parse(const std::string& name);  // throws Error where it is no such name
  // The same of a name that somebody made up: also where its work has no such case, such as "decode has one
  // query".
  static Case parse_own(const std::string& name);
  std::string name() const;

  std::int64_t tokens() const { return batch * queries; }  // that a run computes
  // Multiplications and additions of the products alone; of a causal mask only the visible half.
  double operations() const;
  std::int64_t kv_bytes_per_token() const;  // keys, values and scales
  double kv_bytes() const;                  // of all tokens, each byte once
  double weight_bytes() const;              // of one projection, as the layer keeps it: f32
  double step_bytes() const;                // of a step: the four projections and the cache, each byte once

  bool operator==(const Case&) const = default;
};

// limits and ranks have no case at all.
enum class Suite : std::uint8_t { heads, prefill, decode, layer, backward, lengths, all, limits, ranks };
const char* name_of(Suite);
enum class Size : std::uint8_t { full, quick };  // quick: the long prefill is 2048 tokens, not 4096

std::vector<Case> cases_of(Suite, Size);

}  // namespace heed::tool
