// SPDX-License-Identifier: Apache-2.0
// What every pair of a query and a key has in the backward pass: its weight, and the gradient by its score,
// for a panel of rows and a block of keys at a time, laid out as prefill's scores are: (keys, rows).
#pragma once
#include <cstdint>

#include "cpu/backward/ahead.hpp"
#include "cpu/backward/gradient_operands.hpp"
#include "cpu/backward/gradient_packed_keys.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Log-sum-exps of a panel's rows in base 2, and what floats do not hold of them.
struct LogSums {
  const float *of, *rest;
};

// c * tanh(s / c) less the row's log-sum-exp in place of s, and the slope of tanh. Both are much larger than
// their difference wherever a weight counts: it is computed of all that is known of them, and rounded once.
// Only what is hidden afterwards is -inf.
template <Vector S>
inline void apply_softcap_with_slope(const Call& c, const LogSums& lse, const Scores& t, float* slope) {
  const auto cap = S::fill(c.softcap.cap), cap_rest = S::fill(c.softcap.rest), zero = S::fill(0.0f),
             argument = S::fill(c.softcap.argument);
  typename S::F less[S::panel_vectors], less_rest[S::panel_vectors];
  for (int v = 0; v < S::panel_vectors; ++v) {
    less[v] = S::sub(zero, S::load(lse.of + v * S::lanes));
    less_rest[v] = S::sub(zero, S::load(lse.rest + v * S::lanes));
  }
  float *s = t.s, *const end = t.s + t.keys * t.width;
  while (s < end)
    for (int v = 0; v < S::panel_vectors; ++v, s += S::lanes, slope += S::lanes) {
      const auto [value, of_tanh] = tanh_with_slope<S>(S::mul(S::load(s), argument));
      const auto x = S::add(S::fma(value, cap, less[v]), S::fma(value, cap_rest, less_rest[v]));
      S::store(s, S::max(S::fill(-max_finite), x));
      S::store(slope, of_tanh);
    }
}

template <GradientOperands O>
class GradientPairs {
  using S = typename O::S;
  static constexpr int rows = O::rows, step = O::key_step;

 public:
  GradientProducts<O> products;
  PackedKeys<O> keys;
  // Of the present panel, (keys, rows): after dropout; by the score, or by the product before the softcap.
  float *weights, *gradients;
  Ahead ahead{};

  // As many blocks of keys are kept as said, in memory that may outlast this.
  GradientPairs(const GradientCall& call, const GradientPart& part, std::int64_t key_blocks,
                Cutter& key_memory, Cutter& memory)
      : products(call.forward, part, memory),
        keys(call, products, key_blocks, part.of_rows, key_memory, memory),
        c(call.forward) {
    weights = all_weights = memory.cut(panels_at_once * gradient_keys * rows);
    gradients = all_gradients = memory.cut(panels_at_once * gradient_keys * rows);
    unseen = memory.cut(piece * rows);
    slope = memory.cut(c.softcap ? piece * rows : 0);
    kept = memory.cut(c.drop_below ? piece * rows : 0);
  }

  enum class By : std::uint8_t { score, product };

  // Panel p of the block of rows with the packed keys, a piece of them at a time: what one step has written
  // is in the first-level cache for the next.
  Stretch differentiate(const Queries& query_at, const RowBlock<O>& block, std::int64_t p, By by) {
    const Queries queries = query_at.some(block.first + p * rows, min(rows, block.count - p * rows));
    const Query first = queries(0), last = queries(queries.count - 1);
    const Seen seen = seen_by(c, first.b, first.i, last.i);
    const KeyRange wanted = trim_hidden<S>(c, seen.within(keys.here->packed), queries);
    if (wanted.end <= wanted.begin) return {};
    const std::int64_t begin = (wanted.begin - keys.here->first) / step * step;
    const Stretch at{begin, round_up(wanted.end - keys.here->first - begin, step)};
    weights = all_weights + p % panels_at_once * gradient_keys * rows;
    gradients = all_gradients + p % panels_at_once * gradient_keys * rows;
    for (std::int64_t done = 0; done < at.keys; done += piece) {
      const Piece of{weights + done * rows, gradients + done * rows, keys.here->first + begin + done,
                     min(piece, at.keys - done)};
      differentiate(of, queries,
                    {{block.lse + p * rows, block.lse_rest + p * rows},
                     block.delta + p * rows,
                     block.state + p * rows,
                     p},
                    by);
    }
    return at;
  }

 private:
  static constexpr std::int64_t panels_at_once = RowSums<O>::panels_at_once;
  // Keys, whose scores take 9 KB at the most.
  static constexpr std::int64_t piece =
      min(gradient_keys, max(1, 9216 / static_cast<std::int64_t>(sizeof(float)) / rows / step) * step);

  struct Piece {
    float *weights, *gradients;
    std::int64_t first_key, keys;
  };
  struct Panel {
    LogSums lse;
    const float* delta;
    const RowState* state;
    std::int64_t p;
  };

  void differentiate(const Piece& of, const Queries& queries, const Panel& panel, By by) {
    const Scores t{of.weights, rows, of.first_key, of.keys};
    const std::int64_t first = of.first_key - keys.here->packed.begin;
    score(products.scores, panel.p, first, t, queries);
    const bool is_careful =
        products.scores.may_exceed(max_finite) || products.by_weights.may_exceed(max_finite);
    if (is_careful) spoil_beyond<S>(max_finite, t);
    if (c.softcap) apply_softcap_with_slope<S>(c, panel.lse, t, slope);
    bias_and_mask<S>(c, t, queries);
    const bool is_marked = is_careful || keys.here->has_bad || any_marked(panel.state);
    if (is_marked) mark_unseen<S>(t, unseen);
    weigh_against(panel.lse.of, of);
    score(products.by_weights, panel.p, first, {of.gradients, rows, of.first_key, of.keys}, queries);
    if (c.drop_below) drop(of, queries);
    combine(panel.delta, of);
    if (c.softcap && by == By::product) scale_by(slope, of);  // fault: gradient-without-slope
    if (is_marked) correct(panel.state, of);
  }

  // A step of keys at a time, as long as something is to be asked for in between.
  void score(const O& operands, std::int64_t p, std::int64_t first, const Scores& t, const Queries& queries) {
    if constexpr (GoesByReach<O>)
      if (const Reach<S> reach(c, queries, t); !reach.is_whole())
        return operands.score(p, first, t.keys, t.s, reach);
    std::int64_t done = 0;
    for (; done < t.keys && !ahead.is_over(); done += step) {
      operands.score(p, first + done, step, t.s + done * rows);
      ahead.template touch<S>();
    }
    if (done < t.keys) operands.score(p, first + done, t.keys - done, t.s + done * rows);
  }

  // weights = 2^(score - log-sum-exp), which a softcap has subtracted.
  void weigh_against(const float* lse, const Piece& of) const {
    typename S::F base[S::panel_vectors], sum[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) {
      base[n] = c.softcap ? S::fill(0.0f) : S::load(lse + n * S::lanes);
      sum[n] = S::fill(0.0f);
    }
    weigh<S, S::panel_vectors>(of.weights, rows, of.keys, {base, sum, Exponential<S>(1.0f)});
  }

  // The pattern of the forward pass, as factors; and the gradients by the weights under it.
  void drop(const Piece& of, const Queries& queries) {
    const Scores factors{kept, rows, of.first_key, of.keys};
    fill(kept, of.keys * rows, 1.0f);
    for (std::int64_t r = 0; r < queries.count; ++r)
      apply_dropout(c, queries(r), static_cast<int>(r), factors);
    scale_by(kept, of);
  }

  // gradients = weights * (gradients - delta), and the weights after dropout.
  void combine(const float* delta, const Piece& of) {
    typename S::F less[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) less[n] = S::load(delta + n * S::lanes);
    const float *w = of.weights, *const end = of.weights + of.keys * rows;
    for (float* x = of.gradients; w < end;)
      for (int n = 0; n < S::panel_vectors; ++n, w += S::lanes, x += S::lanes)
        S::store(x, S::mul(S::load(w), S::sub(S::load(x), less[n])));  // fault: gradient-without-delta
    if (!c.drop_below) return;
    for (std::int64_t n = 0; n < of.keys * rows; n += S::lanes)
      // fault: gradient-of-dropped-values
      S::store(of.weights + n, S::mul(S::load(of.weights + n), S::load(kept + n)));
  }

  static void scale_by(const float* factor, const Piece& of) {
    for (std::int64_t n = 0; n < of.keys * rows; n += S::lanes)
      S::store(of.gradients + n, S::mul(S::load(of.gradients + n), S::load(factor + n)));
  }

  static bool any_marked(const RowState* state) {
    bool any = false;
    for (int r = 0; r < rows; ++r) any |= state[r] != RowState::good;
    return any;
  }

  // What is not seen is 0, whatever it was multiplied with; what is seen and bad is the reference's, and so
  // is all that it reaches.
  void correct(const RowState* state, const Piece& of) {
    const unsigned char* is_bad = keys.here->is_bad + (of.first_key - keys.here->packed.begin);
    for (std::int64_t j = 0; j < of.keys; ++j)
      for (int r = 0; r < rows; ++r) {
        float &w = of.weights[j * rows + r], &x = of.gradients[j * rows + r];
        if (unseen[j * rows + r] != 0 || state[r] == RowState::hollow)  // fault: gradient-of-hidden-pairs
          w = x = 0;
        // fault: gradient-of-a-bad-row
        else if (state[r] == RowState::bad || (keys.here->has_bad && is_bad[j]))
          w = x = __builtin_nanf("");
      }
  }

  const Call& c;
  float *all_weights, *all_gradients;  // of as many panels as sums over rows want at once
  float *unseen, *slope, *kept;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
