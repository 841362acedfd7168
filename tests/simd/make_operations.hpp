// SPDX-License-Identifier: Apache-2.0
// Fills the table of operations.hpp from a vector type: each .cpp of this folder that is named after an
// instruction set has one, compiled with that set's flags, and includes nothing of the standard library that
// the linker could hand to code that runs on every machine.
#pragma once
#include <cstdint>

#include "cpu/decode/product.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"
#include "simd/operations.hpp"

namespace heed::simd {

namespace kernels = cpu::HEED_THIS_TARGET;

template <class S, int vectors>
inline void weigh(float* s, std::int64_t keys, const float* max, float* sum, float scale) {
  typename S::F subtract[vectors], sums[vectors];
  for (int v = 0; v < vectors; ++v)
    subtract[v] = S::load(max + v * S::lanes), sums[v] = S::load(sum + v * S::lanes);
  kernels::weigh<S, vectors>(s, vectors * S::lanes, keys, {subtract, sums, kernels::Exponential<S>(scale)});
  for (int v = 0; v < vectors; ++v) S::store(sum + v * S::lanes, sums[v]);
}

template <class S>
inline kernels::Dots dots_of(const EightDots& t) {
  return {t.q, t.q_stride, t.k, t.k_stride, t.depth, t.s, t.s_stride, {t.next, t.next ? t.k_stride : 0}};
}

// body(i) yields the vector of out that begins at i.
template <class S, class Body>
inline void each(float* out, std::int64_t n, const Body& body) {
  for (std::int64_t i = 0; i < n; i += S::lanes) S::store(out + i, body(i));
}

#define HEED_APPLY(expression)                                                     \
  [](const float* a, const float* b, const float* c, float* out, std::int64_t n) { \
    const auto body = [&](std::int64_t i) {                                        \
      const auto x = S::load(a + i), y = S::load(b + i), z = S::load(c + i);       \
      static_cast<void>(x), static_cast<void>(y), static_cast<void>(z);            \
      return expression;                                                           \
    };                                                                             \
    each<S>(out, n, body);                                                         \
  }

template <class S>
constexpr Operations make_operations(const char* target) {
  return {
      .target = target,
      .lanes = S::lanes,
      .rows = kernels::Tile<S>::rows,
      .columns = kernels::Tile<S>::columns,
      .exact = {{"load and store", HEED_APPLY(x)},
                {"fill", HEED_APPLY(S::fill(a[0]))},
                {"addend 0", HEED_APPLY(S::addend(kernels::exp2_terms[0].four))},
                {"addend 1", HEED_APPLY(S::addend(kernels::exp2_terms[1].four))},
                {"addend 2", HEED_APPLY(S::addend(kernels::exp2_terms[2].four))},
                {"addend 3", HEED_APPLY(S::addend(kernels::exp2_terms[3].four))},
                {"addend 4", HEED_APPLY(S::addend(kernels::exp2_terms[4].four))},
                {"add", HEED_APPLY(S::add(x, y))},
                {"sub", HEED_APPLY(S::sub(x, y))},
                {"mul", HEED_APPLY(S::mul(x, y))},
                {"div", HEED_APPLY(S::div(x, y))},
                {"fma", HEED_APPLY(S::fma(x, y, z))},
                {"abs", HEED_APPLY(S::abs(x))},
                {"less", HEED_APPLY(S::less(x, y, z, x))},
                {"copy_sign", HEED_APPLY(S::copy_sign(x, y))},
                {"power_of_two", HEED_APPLY(S::power_of_two(x))},
                {"fma_lane 0", HEED_APPLY(S::template fma_lane<0>(x, S::load_four(b), z))},
                {"fma_lane 1", HEED_APPLY(S::template fma_lane<1>(x, S::load_four(b), z))},
                {"fma_lane 2", HEED_APPLY(S::template fma_lane<2>(x, S::load_four(b), z))},
                {"fma_lane 3", HEED_APPLY(S::template fma_lane<3>(x, S::load_four(b), z))},
                {"load_four is not moved by its neighbours",
                 HEED_APPLY(S::template fma_lane<0>(x, S::load_four(b + 1), z))}},
      .max = HEED_APPLY(S::max(x, y)),
      .exp2 = HEED_APPLY(kernels::Exponential<S>(1.0f)(x)),
      .exp2_in_step =
          [](const float* a, const float*, const float*, float* out, std::int64_t n) {
            for (std::int64_t i = 0; i < n; i += 6 * S::lanes) {
              typename S::F x[6];
              for (int v = 0; v < 6; ++v) x[v] = S::load(a + i + v * S::lanes);
              kernels::exp2<S>(x, kernels::Exponential<S>(1.0f));
              for (int v = 0; v < 6; ++v) S::store(out + i + v * S::lanes, x[v]);
            }
          },
      .tanh = HEED_APPLY(kernels::tanh<S>(x)),
      .load_bf16 =
          [](const std::uint16_t* from, float* out, std::int64_t n) {
            each<S>(out, n, [&](std::int64_t i) { return S::load_bf16(from + i); });
          },
      .load_f16 =
          [](const std::uint16_t* from, float* out, std::int64_t n) {
            each<S>(out, n, [&](std::int64_t i) { return S::load_f16(from + i); });
          },
      .load_i8 =
          [](const std::int8_t* from, float* out, std::int64_t n) {
            each<S>(out, n, [&](std::int64_t i) { return S::load_i8(from + i); });
          },
      .transpose = S::transpose,
      .prefetch = S::prefetch,
      .product = [](const float* a, const float* b, std::int64_t depth,
                    float* c) { kernels::tile_product<S, kernels::Start::zero>(a, b, depth, c); },
      .more_product = [](const float* a, const float* b, std::int64_t depth,
                         float* c) { kernels::tile_product<S, kernels::Start::apart>(a, b, depth, c); },
      .narrow_product =
          [](int vectors, const float* a, const float* b, std::int64_t depth, float* c) {
            kernels::with_vectors<S::panel_vectors>(vectors, [&]<int count> {
              kernels::tile_product<S, kernels::Start::apart, count>(a, b, depth, c);
            });
          },
      .stepped_product =
          [](const float* a, const float* b, const std::int64_t* depths, float* c) {
            std::int64_t depth[S::panel_vectors];
            for (int v = 0; v < S::panel_vectors; ++v) depth[v] = depths[v];
            kernels::stepped_product<S>(a, b, depth, c);
          },
      .line_product =
          [](const LinesToAdd& t) {
            const kernels::LinePanel panels[2] = {{t.lines[0], t.pairs[0], t.rows},
                                                  {t.lines[1], t.pairs[1], t.rows}};
            kernels::line_product<S, 4, 6>(panels, t.panels, t.sums, t.stride);
          },
      .pack_rows =
          [](const RowsToPack& t) {
            const auto row_at = [&t](std::int64_t n) {
              return cpu::Row{t.begin[n], 0, t.step[n], cpu::Type::f32};
            };
            kernels::pack_rows<S>(row_at, {t.count, t.width, t.dim, t.depth}, t.buffer, t.tile);
          },
      .eight_dots = [](const EightDots& t) { kernels::eight_dots<S, cpu::Type::f32>(dots_of<S>(t)); },
      .eight_dots_twice =
          [](const EightDots& t) { kernels::eight_dots_twice<S, cpu::Type::f32>(dots_of<S>(t)); },
      .weigh_panel = weigh<S, S::panel_vectors>,
      .weigh_vector = weigh<S, 1>,
  };
}

#undef HEED_APPLY

}  // namespace heed::simd
