// SPDX-License-Identifier: Apache-2.0
// What the algorithms ask of an instruction set: a vector of floats and its operations. scalar.hpp says what
// each of them means.
#pragma once
#include <concepts>
#include <cstdint>

// Whatever is compiled for a target lies in a namespace of the target's own. So a function that two targets
// compile is two to the linker; of one, it could keep the wide copy for a machine that lacks the
// instructions.
#ifndef HEED_THIS_TARGET
#error "HEED_THIS_TARGET: define it as the name of the target before including its kernels"
#endif

namespace heed::cpu::HEED_THIS_TARGET {

// How rows and columns are cut: a panel of rows is `panel_vectors` vectors, a micro-tile has `tile_columns`
// columns. Rows are packed in fours, and a cache's lines have sixteen elements.
template <class S>
concept Tiled = (16 % S::lanes == 0) && (S::lanes * S::panel_vectors % 4 == 0) && (S::tile_columns % 4 == 0);

template <class S>
concept Arithmetic = requires(typename S::F x, float one) {
  { S::fill(one) } -> std::same_as<typename S::F>;
  { S::addend(&one) } -> std::same_as<typename S::F>;
  { S::add(x, x) } -> std::same_as<typename S::F>;
  { S::sub(x, x) } -> std::same_as<typename S::F>;
  { S::mul(x, x) } -> std::same_as<typename S::F>;
  { S::div(x, x) } -> std::same_as<typename S::F>;
  { S::fma(x, x, x) } -> std::same_as<typename S::F>;
  { S::max(x, x) } -> std::same_as<typename S::F>;
  { S::abs(x) } -> std::same_as<typename S::F>;
  { S::less(x, x, x, x) } -> std::same_as<typename S::F>;
  { S::copy_sign(x, x) } -> std::same_as<typename S::F>;
  { S::power_of_two(x) } -> std::same_as<typename S::F>;
};

// Four neighbours of which each can multiply a vector.
template <class S>
concept Fours = requires(typename S::F x, typename S::Four four, const float* from) {
  { S::load_four(from) } -> std::same_as<typename S::Four>;
  { S::template fma_lane<0>(x, four, x) } -> std::same_as<typename S::F>;
  { S::template fma_lane<3>(x, four, x) } -> std::same_as<typename S::F>;
};

template <class S>
concept Loads = requires(typename S::F x, const float* from, float* to, const float* const four_rows[4],
                         const std::uint16_t* halves, const std::int8_t* bytes, std::int64_t width) {
  { S::load(from) } -> std::same_as<typename S::F>;
  { S::load_f16(halves) } -> std::same_as<typename S::F>;
  { S::load_bf16(halves) } -> std::same_as<typename S::F>;
  { S::load_i8(bytes) } -> std::same_as<typename S::F>;
  S::store(to, x);
  S::transpose(four_rows, to, width);
  S::prefetch(from);  // brings its cache line
};

template <class S>
concept Vector = Tiled<S> && Arithmetic<S> && Fours<S> && Loads<S>;

}  // namespace heed::cpu::HEED_THIS_TARGET
