// SPDX-License-Identifier: Apache-2.0
// What options do to the pairs of a step of the backward pass in one kernel (one_pass.cuh). A call passes the
// code of those alone that it has: every branch is the same for all threads. Pairs of a thread have a bit
// each in a word: which are seen, and which drop.
#pragma once
#include <cstdint>

#include "cuda/backward/mask.hpp"
#include "cuda/backward/pairs.cuh"
#include "cuda/general/scores.cuh"
#include "cuda/general/sources.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda::general {

// Shared memory of masks, for the step at hand, and of what rows have beside StepRows.
template <class Shape>
struct OptionMemory {
  alignas(16) KeyBits mask[Shape::keys];
  float rest[3][Shape::rows];  // of log-sum-exps
};

template <class Shape>
  requires(!Shape::has_options)
struct OptionMemory<Shape> {};

// The keys of a block, and the queries of a step of one head.
struct StepOfPairs {
  int b, head, first_query, first_row;  // first_row: of q, where packed sequences share it
  int key_tile, first_key;
};

template <class Shape>
class PairOptions {
  using Layout = typename Shape::Scores;
  using Pairs = typename Layout::Sums;
  using Bits = std::uint32_t;
  static_assert(Layout::numbers <= 32);

 public:
  HEED_DEVICE PairOptions(const Call& call, const MaskTiles& tiles, OptionMemory<Shape>& memory)
      : c(call), mask(tiles), shared(memory) {}

  HEED_DEVICE static constexpr bool is_16_bits(Type type) { return type == Type::bf16 || type == Type::f16; }

  // What a step needs, on its way to shared memory. A bias of 16 bits waits where P will be: a thread reads
  // of it what it overwrites.
  HEED_DEVICE void prefetch(const StepOfPairs& step, SharedAddress bias, bool bias_in_16) {
    if (!mask.is_empty() && thread_index() < Shape::keys / 2) {
      const int first = step.first_key % MaskTiles::keys + 2 * thread_index();
      const KeyBits* const from =
          mask.tile(step.b, step.head, step.first_query / MaskTiles::queries, step.first_key / MaskTiles::keys);
      prefetch16(shared_address(shared.mask + 2 * thread_index()), from + first, true);
    }
    if (!c.bias.data || !is_16_bits(c.bias.type)) return;
    const Sequence& s = c.sequence(step.b);
    const int keys = static_cast<int>(s.keys) - step.first_key,
              queries = static_cast<int>(s.queries) - step.first_query;
    const Row first = row_of(c.bias, step.b, step.head, step.first_row);
    const std::int64_t column = first.first + step.first_key * c.bias.stride.dim;
    RowCopy<Shape::threads, Shape::rows, Shape::keys, Shape::score_pitch>::run(
        bias, keys, bias_in_16,
        [&](int r) -> Row {
          return {c.bias.data, column + max_of(r, 0) * c.bias.stride.length, c.bias.stride.dim, c.bias.type, 0};
        },
        [&](int r) { return r < queries; });
  }

  // Whether masks hide this thread's share of the keys from all queries of the step.
  HEED_DEVICE bool sees_some() const {
    if (mask.is_empty()) return true;
    const KeyBits own = thread_index() < Shape::keys ? shared.mask[thread_index()] : KeyBits{};
    return (own.word[0] | own.word[1]) != 0;
  }

  // Of pairs that ranges let see, those that masks let see.
  HEED_DEVICE Bits masked(Bits seen) const {
    if (mask.is_empty()) return seen;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t of_key = shared.mask[Layout::column(n) + e].word[Layout::first_row() / 32];
        each_row([&](int m, int r) {
          if (!(of_key >> Layout::row(m, r) % 32 & 1)) seen &= ~bit(m, n, 2 * r + e);
        });
      }
    return seen;
  }

  // Which weights drop (drops() in tile/row.cuh). Two neighbouring lanes have the four keys that share a
  // draw, in the same two rows: each draws for one row and passes on what is the other's.
  HEED_DEVICE Bits dropped(const StepOfPairs& step) const {
    if (c.drop_below == 0) return 0;
    const auto below = static_cast<std::uint32_t>(c.drop_below);  // the probability is less than 1
    const bool is_odd = lane_index() % 2 != 0;
    Bits drop = 0;
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Layout::column_tiles; ++n) {
        const auto [x] = softmax::dropout_words(c.seed, step.b * static_cast<int>(c.heads) + step.head,
                                                step.first_query + Layout::row(m, is_odd),
                                                (step.first_key + Layout::column(n)) / 4);
        Bits four = 0;  // bit k: key k of the four
#pragma unroll
        for (int k = 0; k < 4; ++k) four |= Bits{x[k] < below} << k;
        const Bits other = shuffle_xor(four, 1), of_first = is_odd ? other : four,
                   of_second = is_odd ? four : other;
        const int shift = is_odd ? 2 : 0;
        drop |= ((of_first >> shift & 3) | (of_second >> shift & 3) << 2) << 4 * (m * Layout::column_tiles + n);
      }
    return drop;
  }

  // Scores in base 2, with a softcap less the log-sum-exp, and the slope in dp.
  HEED_DEVICE void scale(Pairs& s, Pairs& dp, const float* lse, const float* rest) const {
    const bool has_cap = c.softcap.cap != 0;
    each_row([&](int m, int r) {
      const float base = lse[Layout::row(m, r)], of_rest = rest[Layout::row(m, r)];
      each_of_row(m, r, [&](int n, int e) {
        float& x = s[m][n][e];
        x = infinity_to_nan(x * c.scaling.query);
        if (!has_cap) return;
        const float t = fast_tanh(x * c.softcap.argument);
        dp[m][n][e] *= fmaf(-t, t, 1.0f);
        x = fmaf(t, c.softcap.cap, -base) + fmaf(t, c.softcap.rest, -of_rest);
      });
    });
  }

  // As with_bias() in tile/row.cuh has it.
  HEED_DEVICE void bias(Pairs& s, const StepOfPairs& step, SharedAddress from) const {
    if (!c.alibi.of_heads && !c.bias.data) return;
    each_pair([&](int m, int n, int e) {
      if (fabsf(s[m][n][e]) > 0x1p73f) s[m][n][e] = __builtin_nanf("");
    });
    if (c.alibi.of_heads) add_slopes(s, step);
    if (!c.bias.data) return;
    if (c.bias.type == Type::bf16)
      add_bias<Type::bf16>(s, from);
    else if (c.bias.type == Type::f16)
      add_bias<Type::f16>(s, from);
    else
      add_wide_bias(s, step);
  }

  HEED_DEVICE static Bits bit(int m, int n, int e) { return Bits{1} << (4 * (m * Layout::column_tiles + n) + e); }

  template <class Visit>
  HEED_DEVICE static void each_row(const Visit& visit) {
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m) visit(m, 0), visit(m, 1);
  }
  template <class Visit>
  HEED_DEVICE static void each_of_row(int, int r, const Visit& visit) {
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n) visit(n, 2 * r), visit(n, 2 * r + 1);
  }

 private:
  template <class Visit>
  HEED_DEVICE static void each_pair(const Visit& visit) {
    each_row([&](int m, int r) { each_of_row(m, r, [&](int n, int e) { visit(m, n, e); }); });
  }

  HEED_DEVICE void add_slopes(Pairs& s, const StepOfPairs& step) const {
    const Sequence& sequence = c.sequence(step.b);
    const float slope = -c.alibi.of_heads[step.b * c.alibi.step + step.head],
                below = c.bias.data ? __builtin_nanf("") : -max_finite;
    const auto shift = static_cast<int>(c.alibi.queries_are_last ? sequence.keys - sequence.queries : 0);
    each_row([&](int m, int r) {
      const int distance = step.first_query + Layout::row(m, r) + shift - step.first_key - Layout::column(0);
      each_of_row(m, r, [&](int n, int e) {
        const float far = fabsf(static_cast<float>(distance - 8 * n - e % 2)),
                    lost = fmaf(slope * far, c.scaling.unit, s[m][n][e]);
        s[m][n][e] = lost < -max_finite ? below : lost;
      });
    });
  }

  // A bias of -inf hides, and no other does (S3).
  HEED_DEVICE float with(float bias, float s) const {
    return bias < -max_finite ? minus_infinity : max_or_nan(-max_finite, fmaf(bias, c.scaling.unit, s));
  }
  template <Type type>
  HEED_DEVICE void add_bias(Pairs& s, SharedAddress bias) const {
    const SharedAddress from = bias + Layout::column(0) * 2;
    each_row([&](int m, int r) {
#pragma unroll
      for (int n = 0; n < Layout::column_tiles; ++n) {
        const std::uint32_t both = load_shared4(from + Layout::row(m, r) * Shape::score_pitch + 16 * n);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto bits = static_cast<std::uint16_t>(both >> 16 * e);
          s[m][n][2 * r + e] = with(type == Type::bf16 ? from_bf16(bits) : from_f16(bits), s[m][n][2 * r + e]);
        }
      }
    });
  }
  HEED_DEVICE void add_wide_bias(Pairs& s, const StepOfPairs& step) const {
    const Sequence& sequence = c.sequence(step.b);
    const int queries = static_cast<int>(sequence.queries) - step.first_query,
              keys = static_cast<int>(sequence.keys) - step.first_key;
    each_row([&](int m, int r) {
      const int row = Layout::row(m, r);
      const Row of = row_of(c.bias, step.b, step.head, step.first_row + min_of(row, queries - 1));
      each_of_row(m, r, [&](int n, int e) {
        const int key = min_of(Layout::column(n) + e % 2, keys - 1);
        s[m][n][e] = with(read(of, step.first_key + key), s[m][n][e]);
      });
    });
  }

  const Call& c;
  const MaskTiles& mask;
  OptionMemory<Shape>& shared;
};

}  // namespace heed::cuda::general
