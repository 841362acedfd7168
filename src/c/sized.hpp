// SPDX-License-Identifier: Apache-2.0
// Structs that begin with their size: a caller may know fewer fields than the library, or more that it leaves
// zero.
#pragma once
#include <cstddef>
#include <span>

#include "heed/c.h"

namespace heed::c {

// The fields without which a struct says nothing: a size that does not reach them is a mistake.
template <class Struct>
inline constexpr std::size_t least_size = sizeof(std::size_t);
template <>
inline constexpr std::size_t least_size<heed_inputs> = offsetof(heed_inputs, k);
template <>
inline constexpr std::size_t least_size<heed_outputs> = offsetof(heed_outputs, weights);
template <>
inline constexpr std::size_t least_size<heed_results> = offsetof(heed_results, weights);
template <>
inline constexpr std::size_t least_size<heed_mask> = offsetof(heed_mask, left);
template <>
inline constexpr std::size_t least_size<heed_cache_config> = offsetof(heed_cache_config, value_dim);
template <>
inline constexpr std::size_t least_size<heed_layer_config> = offsetof(heed_layer_config, kv_heads);
template <>
inline constexpr std::size_t least_size<heed_layer_weights> = offsetof(heed_layer_weights, b_q);
template <>
inline constexpr std::size_t least_size<heed_call> = offsetof(heed_call, context);

void check_pointer(const char* name, const void* pointer);  // refuses NULL

// Copies what both sides know; refuses a size below `least`, and bytes beyond `known` that are not 0.
void read_known(const char* name, std::span<const std::byte> given, std::span<std::byte> known,
                std::size_t least);
// The other way round: zeros for what the library does not know.
void write_known(const char* name, std::span<const std::byte> known, std::span<std::byte> given,
                 std::size_t least);

template <class Struct>
Struct read_known(const char* name, const Struct* given) {
  check_pointer(name, given);
  Struct known{};
  read_known(name, {reinterpret_cast<const std::byte*>(given), given->size},
             std::as_writable_bytes(std::span(&known, 1)), least_size<Struct>);
  return known;
}

template <class Struct>
Struct read_known_or_defaults(const char* name, const Struct* given) {
  return given ? read_known(name, given) : Struct{};
}

template <class Struct>
void write_known(const char* name, Struct known, Struct* given) {
  check_pointer(name, given);
  known.size = given->size;
  write_known(name, std::as_bytes(std::span(&known, 1)), {reinterpret_cast<std::byte*>(given), given->size},
              least_size<Struct>);
}

}  // namespace heed::c
