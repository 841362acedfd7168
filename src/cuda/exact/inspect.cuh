// SPDX-License-Identifier: Apache-2.0
// A second pass that writes the weights or the scores of a row: only when they were asked for. One thread for
// each key, whose score has the same chains of products as in the kernel before (O1).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/state.cuh"
#include "cuda/exact/work.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

class Inspection {
 public:
  static constexpr int threads = 128;

  // Blocks are (batch, heads, queries, keys / threads), the last of them fastest.
  HEED_DEVICE Inspection(const Call& call, const SavedEnd* saved) : c(call) {
    const std::int64_t parts = (c.keys + threads - 1) / threads;
    std::int64_t n = block_index();
    j = n % parts * threads + thread_index();
    n /= parts;
    q.i = n % c.queries, q.h = n / c.queries % c.heads, q.b = n / c.queries / c.heads;
    q.row = c.sequence(q.b).first_query + q.i;
    end = saved ? saved + n : nullptr;
  }

  HEED_DEVICE void run() const {
    const Sequence& s = c.sequence(q.b);
    if (q.i >= s.queries || j >= c.keys) return;
    if (j >= s.keys) return write_beyond();
    const float raw = score();
    if (c.stage == ScoreStage::raw) write_score(raw);
    const float softcapped = softcapped_score(c.softcap, raw);
    if (c.stage == ScoreStage::softcapped) write_score(softcapped);
    const float biased = biased_score(c, q, j, softcapped);
    if (c.stage == ScoreStage::biased) write_score(biased);
    if (c.weights.data) write(row_of(c.weights, q), j, weight(biased));
  }

 private:
  HEED_DEVICE float score() const {
    const std::int64_t kv_head = c.kv_head(q.h);
    const Row query = row_of(c.q, q), key = key_row(c, q.b, kv_head, j);
    float sum = 0;
    for (std::int64_t first = 0; first < c.dim; first += chain_terms) {
      const std::int64_t end_of_chain = min(first + chain_terms, c.dim);
      float chain = 0;
      for (std::int64_t d = first; d < end_of_chain; ++d)
        chain = fmaf(read(query, d) * c.scaling.query, read(key, d), chain);
      if (end_of_chain % 2 != 0)
        chain = fmaf(0.0f, 0.0f, chain);  // as the CPU fills up an odd dimension: -0 becomes 0
      sum = first == 0 ? chain : sum + chain;
    }
    return raw_score(c, q.b, kv_head, j, sum);
  }

  // A weight that is no number in f32 is computed in double precision (S13).
  HEED_DEVICE float weight(float biased) const {
    if (biased == minus_infinity) return 0.0f;
    const ClosedRow row = closed(c, q, end->row, c.scaling);
    const float narrow = after_dropout(c, q, j, power_of(c)(biased - end->row.max) * row.out());
    if (is_finite(narrow)) return narrow;
    return static_cast<float>(double_weight(c, q, end->in_double, j, double_score(c, q, j).biased));
  }

  // Scores have a unit of their own; the caller's are natural. One that f32 cannot hold is computed in double
  // precision.
  HEED_DEVICE void write_score(float s) const {
    const bool is_hidden = s == minus_infinity && c.stage == ScoreStage::biased;
    const bool is_known = is_hidden || (is_finite(s) && s != -max_finite);
    float natural =
        s * static_cast<float>(c.stage == ScoreStage::raw ? c.scaling.product : c.scaling.natural);
    if (!is_known) {
      const DoubleScore in_double = double_score(c, q, j);
      natural = static_cast<float>(c.stage == ScoreStage::raw          ? in_double.raw
                                   : c.stage == ScoreStage::softcapped ? in_double.softcapped
                                                                       : in_double.biased);
    }
    write(row_of(c.scores, q), j, natural);
  }

  // The columns that a sequence shorter than the longest does not fill.
  HEED_DEVICE void write_beyond() const {
    if (c.weights.data) write(row_of(c.weights, q), j, 0.0f);
    if (c.scores.data) write(row_of(c.scores, q), j, c.stage == ScoreStage::biased ? minus_infinity : 0.0f);
  }

  const Call& c;
  Query q{};
  std::int64_t j;
  const SavedEnd* end;
};

}  // namespace heed::cuda
