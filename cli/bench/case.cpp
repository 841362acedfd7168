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
  const std::int64_t pairs = c.is_causal ? c.queries * (c.queries + 1) / 2 : c.queries * c.keys;
  return 2 * product(c.batch * c.heads, pairs, c.dim);  // q k^T, and the weights times v
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::prefill:
      return "prefill";
    case Role::decode:
      return "decode";
    case Role::layer:
      return "layer";
    case Role::projection:
      return "projection";
  }
  return "";
}

std::string Case::name() const {
  const std::string start = fmt::format("{}/{}/", name_of(role), heed::name_of(dtype));
  if (role == Role::projection) return start + fmt::format("{}x{}x{}", batch, model_dim(), model_dim());
  return start + fmt::format("{}x{}x{}x{}x{}x{}", batch, heads, kv_heads, queries, keys, dim) +
         (is_causal ? "/causal" : "");
}

double Case::operations() const {
  if (role == Role::projection) return product(batch, model_dim(), model_dim());
  if (role != Role::layer) return attention_operations(*this);
  const std::int64_t rows = batch * queries;
  return attention_operations(*this) + 2 * product(rows, model_dim(), model_dim()) +
         2 * product(rows, kv_heads * dim, model_dim());
}

double Case::kv_bytes() const {
  return 2 * static_cast<double>(batch * kv_heads * keys * dim) * static_cast<double>(bytes_of(dtype));
}

double Case::weight_bytes() const { return static_cast<double>(model_dim() * model_dim()) * sizeof(float); }

}  // namespace heed::tool
