// SPDX-License-Identifier: Apache-2.0
// The structs of c.h: what their numbers stand for, where their fields lie, and sizes that say how many of
// them a caller knows.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "heed/c.h"
#include "heed/error.hpp"
#include "refusal/refusal.hpp"

namespace heed::c {

template <class Meaning>
struct Choice {
  std::int32_t number;
  const char* name;
  Meaning meaning;
};

template <class Meaning, std::size_t count>
const Meaning& choose(const char* argument, const char* field, std::int32_t number,
                      const std::array<Choice<Meaning>, count>& choices) {
  for (const Choice<Meaning>& choice : choices)
    if (choice.number == number) return choice.meaning;
  std::string names;
  for (const Choice<Meaning>& choice : choices) (names += names.empty() ? "" : ", ") += choice.name;
  throw refusal(Error::value, argument, ".", field, ": ", std::int64_t{number}, " is none of ", names);
}

inline bool to_flag(const char* name, std::int32_t number) {
  if (number != 0 && number != 1)
    throw refusal(Error::value, name, ": ", std::int64_t{number}, " is neither 0 nor 1");
  return number == 1;
}

// The number that means this; of meanings that are in the table.
template <class Meaning, std::size_t count>
std::int32_t number_of(const Meaning& meaning, const std::array<Choice<Meaning>, count>& choices) {
  for (const Choice<Meaning>& choice : choices)
    if (choice.meaning == meaning) return choice.number;
  return -1;
}

// Sentences about a part of something begin with the name of the whole, put together only when there is one.

template <class Body, class... Parts>
auto qualified(const Body& body, const Parts&... whole) {
  try {
    return body();
  } catch (const Error& refused) {
    throw refusal(refused.code, whole..., refused.what());
  }
}

// Structs with a kind and the fields of all kinds: each takes its own out, and what is left must be zeros.

template <class Field>
Field take(Field& field) {
  return std::exchange(field, Field{});
}

inline Error something_left(std::int32_t kind) {
  return refusal(Error::value, ": a field that kind ", std::int64_t{kind}, " does not have is not 0");
}

// Where the fields of every struct with a size lie. A structured binding names them all, or does not compile:
// none that is added is forgotten here.

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
inline auto fields_of(const heed_saved& s) {
  const auto& [size, out, log_sum_exp] = s;
  return places(s, size, out, log_sum_exp);
}
inline auto fields_of(const heed_gradients& s) {
  const auto& [size, out, log_sum_exp, q, k, v, bias, sink, accumulate, reserved] = s;
  return places(s, size, out, log_sum_exp, q, k, v, bias, sink, accumulate, reserved);
}
inline auto fields_of(const heed_options& s) {
  const auto& [size, masks, bias, sink, scale, has_scale, softcap, head_map, dropout, kernel, slopes, align,
               threads, stream, scale_f64, softcap_f64, drop_probability_f64, executor] = s;
  return places(s, size, masks, bias, sink, scale, has_scale, softcap, head_map, dropout, kernel, slopes,
                align, threads, stream, scale_f64, softcap_f64, drop_probability_f64, executor);
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
  const auto& [size, x, context, value, cache, sequences, counts, positions, key_positions, seed,
               activations] = s;
  return places(s, size, x, context, value, cache, sequences, counts, positions, key_positions, seed,
                activations);
}
inline auto fields_of(const heed_layer_gradients& s) {
  const auto& [size, out, log_sum_exp, x, context, value, bias, sink, accumulate, skip] = s;
  return places(s, size, out, log_sum_exp, x, context, value, bias, sink, accumulate, skip);
}
inline auto fields_of(const heed_parameters& s) {
  const auto& [size, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o] = s;
  return places(s, size, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o);
}
inline auto fields_of(const heed_executor_config& s) {
  const auto& [size, context, run, concurrency, reserved] = s;
  return places(s, size, context, run, concurrency, reserved);
}

// Structs that begin with their size: a caller may know fewer fields than the library, or more that it leaves
// zero.

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
inline constexpr std::size_t min_size<heed_saved> = sizeof(heed_saved);
template <>
inline constexpr std::size_t min_size<heed_gradients> = offsetof(heed_gradients, log_sum_exp);
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
template <>
inline constexpr std::size_t min_size<heed_layer_gradients> = offsetof(heed_layer_gradients, log_sum_exp);
template <>
inline constexpr std::size_t min_size<heed_executor_config> = offsetof(heed_executor_config, concurrency);

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
