// SPDX-License-Identifier: Apache-2.0
// Where the fields of every struct with a size lie. A structured binding names them all, or does not compile:
// none that is added is forgotten here.
#pragma once
#include <array>
#include <cstddef>

#include "heed/c.h"

namespace heed::c {

// [begin, end) of the struct's bytes.
struct Field {
  std::size_t begin, end;
};

template <class Struct, class... Fields>
std::array<Field, sizeof...(Fields)> places(const Struct& all, const Fields&... fields) {
  const auto place = [&all](const auto& field) {
    const auto begin = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&field) -
                                                reinterpret_cast<const std::byte*>(&all));
    return Field{begin, begin + sizeof field};
  };
  return {place(fields)...};
}

inline auto fields_of(const heed_mask& s) {
  const auto& [kind, align, left, right, front, valid, where, ids, query_ids] = s;
  return places(s, kind, align, left, right, front, valid, where, ids, query_ids);
}
inline auto fields_of(const heed_inputs& s) {
  const auto& [size, q, k, v, cache, sequences, query_starts, key_starts, query_counts] = s;
  return places(s, size, q, k, v, cache, sequences, query_starts, key_starts, query_counts);
}
inline auto fields_of(const heed_outputs& s) {
  const auto& [size, out, weights, log_sum_exp, scores] = s;
  return places(s, size, out, weights, log_sum_exp, scores);
}
inline auto fields_of(const heed_results& s) {
  const auto& [size, out, weights, log_sum_exp] = s;
  return places(s, size, out, weights, log_sum_exp);
}
inline auto fields_of(const heed_options& s) {
  const auto& [size, masks, bias, sink, scale, has_scale, softcap, head_map, dropout, kernel, slopes, align,
               threads, stream] = s;
  return places(s, size, masks, bias, sink, scale, has_scale, softcap, head_map, dropout, kernel, slopes,
                align, threads, stream);
}
inline auto fields_of(const heed_rotary& s) {
  const auto& [size, base, pairs, dims, scaling] = s;
  return places(s, size, base, pairs, dims, scaling);
}
inline auto fields_of(const heed_cache_config& s) {
  const auto& [size, batch, kv_heads, capacity, dim, value_dim, page_size, pages, window, type, when,
               rotary] = s;
  return places(s, size, batch, kv_heads, capacity, dim, value_dim, page_size, pages, window, type, when,
                rotary);
}
inline auto fields_of(const heed_layer_config& s) {
  const auto& [size, model_dim, heads, kv_heads, head_dim, value_head_dim, key_dim, value_dim, drop, map,
               rotary] = s;
  return places(s, size, model_dim, heads, kv_heads, head_dim, value_head_dim, key_dim, value_dim, drop, map,
                rotary);
}
inline auto fields_of(const heed_layer_weights& s) {
  const auto& [size, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o] = s;
  return places(s, size, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o);
}
inline auto fields_of(const heed_call& s) {
  const auto& [size, x, context, value, cache, sequences, counts, positions, key_positions, seed] = s;
  return places(s, size, x, context, value, cache, sequences, counts, positions, key_positions, seed);
}

}  // namespace heed::c
