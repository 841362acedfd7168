// SPDX-License-Identifier: Apache-2.0
// See case.hpp.
#include "bench/case.hpp"

#include <fmt/core.h>

namespace heed::tool {
namespace {

double product(std::int64_t rows, std::int64_t columns, std::int64_t depth) {
  return 2 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
}

double attention_operations(const Case& c) {
  const std::int64_t pairs =
      c.between == Between::causal ? c.queries * (c.queries + 1) / 2 : c.queries * c.keys;
  return 2 * product(c.batch * c.heads, pairs, c.dim);  // q k^T, and the weights times v
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::prefill:
      return "prefill";
    case Role::decode:
      return "decode";
    case Role::backward:
      return "backward";
    case Role::layer:
      return "layer";
    case Role::projection:
      return "projection";
    case Role::cache:
      return "cache";
    case Role::step:
      return "step";
  }
  return "";
}

const char* name_of(Between between) {
  switch (between) {
    case Between::nothing:
      return "";
    case Between::causal:
      return "causal";
    case Between::bias:
      return "bias";
    case Between::keep:
      return "keep";
  }
  return "";
}

// Evenly from short to long: with 64 sequences of 512 tokens on average, 8, 24, 40, ..., 1016.
std::int64_t Case::length_of(std::int64_t sequence) const {
  return is_mixed ? (2 * sequence + 1) * keys / batch : keys;
}

KvCacheConfig Case::cache_config() const {
  KvCacheConfig config{
      .batch = batch, .kv_heads = kv_heads, .capacity = length_of(batch - 1), .dim = dim, .type = stored};
  if (page_size > 0) config.page_size = page_size;
  return config;
}

std::string Case::name() const {
  const std::string start =
      fmt::format("{}/{}/", name_of(role), is_cached() ? heed::name_of(stored) : heed::name_of(dtype));
  if (role == Role::projection)
    return start + fmt::format("{}x{}x{}", batch * queries, model_dim(), model_dim());
  return start + fmt::format("{}x{}x{}x{}x{}x{}", batch, heads, kv_heads, queries, keys, dim) +
         (between == Between::nothing ? "" : fmt::format("/{}", name_of(between))) +
         (page_size > 0 ? fmt::format("/paged{}", page_size) : "") + (is_mixed ? "/mixed" : "");
}

double Case::operations() const {
  if (role == Role::projection) return product(batch * queries, model_dim(), model_dim());
  if (role == Role::backward) return 2.5 * attention_operations(*this);  // five products for two
  if (role != Role::layer) return attention_operations(*this);
  const std::int64_t rows = batch * queries;
  return attention_operations(*this) + 2 * product(rows, model_dim(), model_dim()) +
         2 * product(rows, kv_heads * dim, model_dim());
}

std::int64_t Case::kv_bytes_per_token() const {
  if (!is_cached()) return 2 * kv_heads * dim * static_cast<std::int64_t>(bytes_of(dtype));
  const std::int64_t element = stored == CacheType::int8 ? 1 : stored == CacheType::f32 ? 4 : 2;
  const std::int64_t scales = stored == CacheType::int8 ? 2 * 4 : 0;
  return kv_heads * (2 * dim * element + scales);
}

double Case::kv_bytes() const {
  return static_cast<double>(batch * keys) * static_cast<double>(kv_bytes_per_token());
}

double Case::step_bytes() const {
  const auto kv_rows = static_cast<double>(2 * kv_heads * dim * model_dim());
  return 2 * weight_bytes() + kv_rows * sizeof(float) + kv_bytes();
}

double Case::weight_bytes() const {
  return static_cast<double>(model_dim() * model_dim()) * static_cast<double>(bytes_of(dtype));
}

}  // namespace heed::tool
