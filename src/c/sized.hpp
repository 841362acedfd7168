// SPDX-License-Identifier: Apache-2.0
// Structs that begin with their size: a caller may know fewer fields than the library, or more that it leaves
// zero.
#pragma once
#include <cstddef>
#include <span>

#include "c/fields.hpp"
#include "heed/c.h"

namespace heed::c {

// The fields without which a struct says nothing: a size that does not reach them is a mistake.
template <class Struct>
inline constexpr std::size_t min_size = sizeof(std::size_t);
template <>
inline constexpr std::size_t min_size<heed_inputs> = offsetof(heed_inputs, k);
template <>
inline constexpr std::size_t min_size<heed_outputs> = offsetof(heed_outputs, weights);
template <>
inline constexpr std::size_t min_size<heed_results> = offsetof(heed_results, weights);
template <>
inline constexpr std::size_t min_size<heed_mask> = offsetof(heed_mask, left);
template <>
inline constexpr std::size_t min_size<heed_cache_config> = offsetof(heed_cache_config, value_dim);
template <>
inline constexpr std::size_t min_size<heed_layer_config> = offsetof(heed_layer_config, kv_heads);
template <>
inline constexpr std::size_t min_size<heed_layer_weights> = offsetof(heed_layer_weights, b_q);
template <>
inline constexpr std::size_t min_size<heed_call> = offsetof(heed_call, context);

void check_pointer(const char* name, const void* pointer);  // refuses NULL

// A struct as the library knows it: what a size is held against.
struct Known {
  std::size_t size, least;
  std::span<const Field> fields;
};
// Refuses a size below `least`, one that ends inside a field, and one that no struct has.
void check_size(const char* name, std::size_t size, const Known&);
template <class Struct>
void check_size(const char* name, std::size_t size) {
  const Struct known{};
  const auto fields = fields_of(known);
  check_size(name, size, Known{sizeof known, min_size<Struct>, fields});
}

// Copies what both sides know; refuses bytes beyond `known` that are not 0.
void read_known(const char* name, std::span<const std::byte> given, std::span<std::byte> known);
// The other way round: zeros for what the library does not know.
void write_known(std::span<const std::byte> known, std::span<std::byte> given);

template <class Struct>
Struct read_known(const char* name, const std::byte* given, std::size_t size) {
  check_size<Struct>(name, size);
  Struct known{};
  read_known(name, {given, size}, std::as_writable_bytes(std::span(&known, 1)));
  return known;
}

template <class Struct>
Struct read_known(const char* name, const Struct* given) {
  check_pointer(name, given);
  return read_known<Struct>(name, reinterpret_cast<const std::byte*>(given), given->size);
}

template <class Struct>
Struct read_known_or_defaults(const char* name, const Struct* given) {
  return given ? read_known(name, given) : Struct{};
}

template <class Struct>
void write_known(const char* name, Struct known, Struct* given) {
  check_pointer(name, given);
  check_size<Struct>(name, given->size);
  known.size = given->size;
  write_known(std::as_bytes(std::span(&known, 1)), {reinterpret_cast<std::byte*>(given), given->size});
}

}  // namespace heed::c
