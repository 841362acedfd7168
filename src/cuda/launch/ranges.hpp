// SPDX-License-Identifier: Apache-2.0
// What all kernels of the matrix units refuse.
#pragma once
#include <cmath>

#include "cuda/call.hpp"

namespace heed::cuda {

inline const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  if (c.k.type != c.q.type || c.v.type != c.q.type) return "it takes q, k and v of one type";
  if (c.dim != c.value_dim) return "it takes keys and values of one width";
  if (c.bias.data) return "it takes no bias";
  if (c.alibi.of_heads) return "it takes no slopes of ALiBi";
  if (c.mask_count > 0 || c.document_count > 0) return "it takes no masks but ranges of keys";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.drop_below > 0) return "it takes no dropout";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 30)
    return "there are 2^30 rows or more";
  return nullptr;
}

}  // namespace heed::cuda
