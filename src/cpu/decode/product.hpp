// SPDX-License-Identifier: Apache-2.0
// Decode's micro-kernels, which read keys and values in place. eight_dots: a vector of rows times eight keys
// of the caller's. add_lines, score_lines: up to four rows times lines of sixteen elements, as a cache has
// them, which are keys in scores and dimensions in values. An instruction set may specialise any of them.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/pack.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr int keys_per_dots = 8;

// Rows that are read next, to be prefetched one after another between the products: reading eight rows side
// by side defeats the hardware's prefetching, which follows single streams. Neoverse-N1, one core, f32 from
// DRAM: 7.2 GB/s without, 8.1 with a burst of prefetches first, 15.5 with prefetches spread between the
// products (November 2026). rows is null where nothing is prefetched.
struct Upcoming {
  const void* rows = nullptr;
  std::int64_t stride = 0;  // elements
};

// s(key, rows) = sum over d of q(d, rows) * k(key, d) for one vector of rows and eight keys, in FMA chains of
// chain_terms. Rows of q lie q_stride apart, keys k_stride, scores s_stride; depth is a multiple of 4.
struct Dots {
  const float* q;
  std::int64_t q_stride;
  const void* k;
  std::int64_t k_stride, depth;
  float* s;
  std::int64_t s_stride;
  Upcoming next{};  // eight keys
};

// What eight_dots reads in place; other keys are widened to f32 first. An instruction set may specialise
// both.
template <Vector S, Type type>
inline constexpr bool dots_take = type == Type::f32;

// The cache line with dimension d of each upcoming key of f32.
template <Vector S>
inline void prefetch_line_of(const Upcoming& next, std::int64_t d) {
  const auto* k = static_cast<const float*>(next.rows);
  for (int n = 0; k && n < keys_per_dots; ++n) S::prefetch(k + n * next.stride + d);
}

template <Vector S, Type type>
inline void eight_dots(const Dots& t) {
  static_assert(type == Type::f32);
  const auto* k = static_cast<const float*>(t.k);
  for (std::int64_t first = 0; first < t.depth; first += chain_terms) {
    const std::int64_t end = t.depth - first < chain_terms ? t.depth : first + chain_terms;
    typename S::F sum[keys_per_dots];
    for (auto& of : sum) of = S::fill(0.0f);
    for (std::int64_t d = first, line_end; d < end;) {
      prefetch_line_of<S>(t.next, d);
      for (line_end = end - d < 16 ? end : d + 16; d < line_end; ++d) {
        const auto x = S::load(t.q + d * t.q_stride);
        for (int n = 0; n < keys_per_dots; ++n) sum[n] = S::fma(x, S::fill(k[n * t.k_stride + d]), sum[n]);
      }
    }
    for (int n = 0; n < keys_per_dots; ++n) {
      float* const s = t.s + n * t.s_stride;
      S::store(s, first == 0 ? sum[n] : S::add(S::load(s), sum[n]));
    }
  }
}

// The same for two vectors of rows side by side. An instruction set that can keep their sums specialises it.
template <Vector S, Type type>
inline void eight_dots_twice(Dots t) {
  eight_dots<S, type>(t);
  t.q += S::lanes, t.s += S::lanes, t.next = {};
  eight_dots<S, type>(t);
}

constexpr int line_elements = 16;

// `count` lines side by side, and what each of up to four rows multiplies each line with.
struct Lines {
  const float* factors;  // (count, rows), `stride` floats apart
  std::int64_t stride;
  const void* lines;  // (count, 16)
  std::int64_t count;
  float* sum;  // (rows, 16), `sum_stride` floats apart, with room for four rows
  std::int64_t sum_stride;
  const void* next;  // lines that are read next: one is prefetched for each that is used
};

// sum(rows, 16) += over n of factors(n, rows) * lines(n, 16): one FMA chain each. An instruction set may
// specialise it.
template <Vector S, Type type, int rows>
inline void add_lines(const Lines& t) {
  using F = typename S::F;
  constexpr int vectors = line_elements / S::lanes;
  F total[rows][vectors];
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v) total[r][v] = S::load(t.sum + r * t.sum_stride + v * S::lanes);
  const auto* line = static_cast<const unsigned char*>(t.lines);
  const auto* next = static_cast<const unsigned char*>(t.next);
  const float* factors = t.factors;
  constexpr std::int64_t bytes = line_elements * bytes_of_type<type>;
  const std::int64_t stride = t.stride;
  for (std::int64_t n = t.count; n > 0; --n, factors += stride, line += bytes, next += bytes) {
    S::prefetch(next);
    const auto four = S::load_four(factors);
    for (int v = 0; v < vectors; ++v) {
      const F x = load_as<S, type>(line, v * S::lanes);
      total[0][v] = S::template fma_lane<0>(x, four, total[0][v]);
      if constexpr (rows > 1) total[1][v] = S::template fma_lane<1>(x, four, total[1][v]);
      if constexpr (rows > 2) total[2][v] = S::template fma_lane<2>(x, four, total[2][v]);
      if constexpr (rows > 3) total[3][v] = S::template fma_lane<3>(x, four, total[3][v]);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vectors; ++v) S::store(t.sum + r * t.sum_stride + v * S::lanes, total[r][v]);
}

// add_lines() for `blocks` that follow each other sixteen lines apart, each with sums of its own beside the
// last one's: a tile of values.
template <Vector S, Type type, int rows>
inline void add_one_by_one(Lines t, std::int64_t blocks) {
  constexpr std::int64_t bytes = line_elements * line_elements * bytes_of_type<type>;
  for (; blocks > 0; --blocks, t.sum += line_elements) {
    add_lines<S, type, rows>(t);
    t.lines = static_cast<const unsigned char*>(t.lines) + bytes;
    t.next = static_cast<const unsigned char*>(t.next) + bytes;
  }
}

// add_lines() for four such blocks at once, where a line is one vector: factors serve all of them.
template <Vector S, Type type, int rows>
  requires(S::lanes == line_elements)
inline void add_four(const Lines& t) {
  constexpr std::int64_t bytes = line_elements * bytes_of_type<type>, block = line_elements * bytes;
  typename S::F total[4][rows];
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < rows; ++r) total[n][r] = S::load(t.sum + r * t.sum_stride + n * line_elements);
  const auto *line = static_cast<const unsigned char*>(t.lines),
             *next = static_cast<const unsigned char*>(t.next);
  const float* factors = t.factors;
  for (std::int64_t remaining = t.count; remaining > 0;
       --remaining, factors += t.stride, line += bytes, next += 4 * bytes) {
    for (std::int64_t n = 0; n < 4 * bytes; n += 64) S::prefetch(next + n);
    typename S::F x[4];
    for (int n = 0; n < 4; ++n) x[n] = load_as<S, type>(line + n * block, 0);
    for (int r = 0; r < rows; ++r) {
      const auto factor = S::fill(factors[r]);
      for (int n = 0; n < 4; ++n) total[n][r] = S::fma(x[n], factor, total[n][r]);
    }
  }
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < rows; ++r) S::store(t.sum + r * t.sum_stride + n * line_elements, total[n][r]);
}

// The same. An instruction set may specialise it.
template <Vector S, Type type, int rows>
inline void add_blocks(Lines t, std::int64_t blocks) {
  if constexpr (S::lanes == line_elements)
    for (; blocks >= 4; blocks -= 4, t.sum += 4 * line_elements) {
      constexpr std::int64_t bytes = 4 * line_elements * line_elements * bytes_of_type<type>;
      add_four<S, type, rows>(t);
      t.lines = static_cast<const unsigned char*>(t.lines) + bytes;
      t.next = static_cast<const unsigned char*>(t.next) + bytes;
    }
  add_one_by_one<S, type, rows>(t, blocks);
}

// (4, 16) to (16, 4).
template <Vector S>
inline void transpose_tile(const float (&from)[4][line_elements], float* to, std::int64_t stride) {
  for (std::int64_t j = 0; j < line_elements; j += 4) {
    const float* const corner[4] = {from[0] + j, from[1] + j, from[2] + j, from[3] + j};
    S::transpose(corner, to + j * stride, stride);
  }
}

// Whether an instruction set does it in its registers, if the result lies side by side.
template <class S>
inline constexpr bool transposes_four =
    requires(const typename S::F (&rows)[4], float* lines) { S::transpose_four(rows, lines); };

// sum(16, 4) = over n of lines(n, 16) * factors(n, rows): the same chains from 0, but transposed, as scores
// lie; rows beyond `rows` become 0. An instruction set may specialise it.
template <Vector S, Type type, int rows>
inline void score_lines(const Lines& t) {
  float sum[4][line_elements] = {};
  add_lines<S, type, rows>({t.factors, t.stride, t.lines, t.count, sum[0], line_elements, t.next});
  transpose_tile<S>(sum, t.sum, t.sum_stride);
}

// score_lines() in chains of `chain_terms`; t.next lies as t.lines do.
template <Vector S, Type type, int rows>
inline void score_in_chains(const Lines& t) {
  constexpr std::int64_t bytes = line_elements * bytes_of_type<type>;
  const auto part = [&](std::int64_t first, float* sum, std::int64_t sum_stride) {
    const auto *lines = static_cast<const unsigned char*>(t.lines),
               *next = static_cast<const unsigned char*>(t.next);
    score_lines<S, type, rows>({t.factors + first * t.stride, t.stride, lines + first * bytes,
                                min(chain_terms, t.count - first), sum, sum_stride, next + first * bytes});
  };
  part(0, t.sum, t.sum_stride);
  for (std::int64_t first = chain_terms; first < t.count; first += chain_terms) {
    float chain[line_elements][4];
    part(first, chain[0], 4);
    for (std::int64_t j = 0; j < line_elements; ++j)
      for (std::int64_t row = 0; row < 4; ++row) t.sum[j * t.sum_stride + row] += chain[j][row];
  }
}

// The sums of up to four rows, a vector each, as scores lie; rows beyond `rows` become 0.
template <Vector S, int rows>
  requires(S::lanes == line_elements)
inline void store_transposed(const typename S::F (&sums)[rows], float* to, std::int64_t stride) {
  if constexpr (transposes_four<S>)
    if (stride == 4) {
      typename S::F four[4];
      for (int r = 0; r < 4; ++r) four[r] = r < rows ? sums[r] : S::fill(0.0f);
      return S::transpose_four(four, to);
    }
  float sum[4][line_elements] = {};
  for (int r = 0; r < rows; ++r) S::store(sum[r], sums[r]);
  transpose_tile<S>(sum, to, stride);
}

// Some tiles of lines that meet the same factors; otherwise as Lines.
template <int tiles>
struct Tiles {
  const float* factors;
  std::int64_t stride;
  const void* lines[tiles];
  std::int64_t count;
  float* sum;
  std::int64_t sum_stride;
  const void* next[tiles];
  const float* scales[tiles];  // of int8, one for each element of a line
};

// score_lines() for all of them, sum(16 tiles, 4), and scaled, where a line is one vector: the sums of four
// rows would wait for each other.
template <Vector S, Type type, int rows, int tiles>
  requires(S::lanes == line_elements)
inline void score_tiles(const Tiles<tiles>& t) {
  constexpr std::int64_t bytes = line_elements * bytes_of_type<type>;
  typename S::F total[tiles][rows];
  for (auto& of : total)
    for (auto& sum : of) sum = S::fill(0.0f);
  const unsigned char* lines[tiles];
  for (int n = 0; n < tiles; ++n) lines[n] = static_cast<const unsigned char*>(t.lines[n]);
  const float* factors = t.factors;
  std::int64_t at = 0;
  const auto add = [&] {
    typename S::F x[tiles];
    for (int n = 0; n < tiles; ++n) x[n] = load_as<S, type>(lines[n] + at, 0);
    for (int r = 0; r < rows; ++r) {
      const auto factor = S::fill(factors[r]);
      for (int n = 0; n < tiles; ++n) total[n][r] = S::fma(x[n], factor, total[n][r]);
    }
    at += bytes, factors += t.stride;
  };
  const std::int64_t end = t.count * bytes;
  while (at + 64 <= end) {  // as many as a line of memory has
    for (const void* next : t.next) S::prefetch(static_cast<const unsigned char*>(next) + at);
    for (std::int64_t n = 0; n < 64; n += bytes) add();
  }
  while (at < end) add();
  for (std::int64_t n = 0; n < tiles; ++n) {
    if constexpr (type == Type::int8)
      for (auto& sum : total[n]) sum = S::mul(sum, S::load(t.scales[n]));
    store_transposed<S>(total[n], t.sum + n * line_elements * t.sum_stride, t.sum_stride);
  }
}

}  // namespace heed::cpu::HEED_THIS_TARGET
