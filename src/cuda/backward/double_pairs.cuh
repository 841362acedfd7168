// SPDX-License-Identifier: Apache-2.0
// Pairs of a query and a key in double precision, as src/reference/gradient.cpp has them (S13, G9), and what
// is known of a row of queries before any of its pairs is.
#pragma once
#include <cstdint>
#include <cstring>

#include "cuda/backward/rows.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Whether a row's numbers of 16 bits lie side by side, eight of them on 16 bytes.
HEED_DEVICE bool lies_in_eights(const Row& row, std::int64_t dim) {
  return (row.type == Type::bf16 || row.type == Type::f16) && row.step == 1 && row.block == 16 &&
         dim % 8 == 0 && (reinterpret_cast<std::uintptr_t>(row.data) + 2 * row.first) % 16 == 0;
}
HEED_DEVICE void read_eight(float (&x)[8], const Row& row, std::int64_t d) {
  const uint4 bits =
      *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(row.data) + row.first + d);
  const std::uint32_t both[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const auto of = static_cast<std::uint16_t>(both[n / 2] >> n % 2 * 16);
    x[n] = row.type == Type::bf16 ? from_bf16(of) : from_f16(of);
  }
}

// Of no page.
HEED_DEVICE float read_straight(const Row& row, std::int64_t d) {
  const std::int64_t e = row.first + d * row.step;
  if (row.type == Type::f32) return static_cast<const float*>(row.data)[e];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row.data)[e];
  return row.type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

// In order, however it is read.
HEED_DEVICE double double_dot(const Row& a, const Row& b, std::int64_t dim) {
  double sum = 0;
  if (lies_in_eights(a, dim) && lies_in_eights(b, dim)) {
#pragma unroll 4
    for (std::int64_t d = 0; d < dim; d += 8) {
      float x[8], y[8];
      read_eight(x, a, d), read_eight(y, b, d);
#pragma unroll
      for (int n = 0; n < 8; ++n) sum += static_cast<double>(x[n]) * static_cast<double>(y[n]);
    }
    return sum;
  }
  for (std::int64_t d = 0; d < dim; ++d)
    sum += static_cast<double>(read(a, d)) * static_cast<double>(read(b, d));
  return sum;
}

// What a row of queries has to itself. `gradient` is dL less delta (G3). A key no longer than `reach` has a
// weight that is neither 0 nor infinite in double precision, whatever its direction; 0 where nothing is
// known.
struct DoubleRow {
  static constexpr std::uint32_t hollow = 1,  // gives nothing to any gradient but the sink's (G6)
      special = 2,                            // something of it is not finite
      no_weights = 4,                         // every weight of a pair is NaN
      no_scores = 8,                          // and so is every dS
      unsure = 16,                            // a pair's score may be an infinity
      has_wild_gradient = 32,                 // dO is not finite
      all = 63;

  double gradient;
  float reach;
  std::uint32_t flags;

  HEED_DEVICE bool is(std::uint32_t flag) const { return (flags & flag) != 0; }
};

// They take the place of what products read of a row (GradientRows), which nobody reads any more.
HEED_DEVICE void keep(const GradientCall& g, std::int64_t n, const DoubleRow& row) {
  std::uint32_t words[3];
  std::memcpy(words, &row.gradient, 8);
  std::memcpy(words + 2, &row.reach, 4);
  words[2] = (words[2] & ~DoubleRow::all) | row.flags;  // a little less is as true
  std::memcpy(g.rows.log_sum_exp + n, words, 4);
  std::memcpy(g.rows.rest + n, words + 1, 4);
  std::memcpy(g.rows.delta + n, words + 2, 4);
}
// Of any block, once it is done.
HEED_DEVICE std::uint32_t kept_word(const float* from) {
  const float x = load_l2(from);
  std::uint32_t word;
  std::memcpy(&word, &x, 4);
  return word;
}
HEED_DEVICE DoubleRow kept_row(const GradientCall& g, std::int64_t n) {
  const std::uint32_t words[3] = {kept_word(g.rows.log_sum_exp + n), kept_word(g.rows.rest + n),
                                  kept_word(g.rows.delta + n)},
                      reach = words[2] & ~DoubleRow::all;
  DoubleRow row{0, 0, words[2] & DoubleRow::all};
  std::memcpy(&row.gradient, words, 8);
  std::memcpy(&row.reach, &reach, 4);
  return row;
}
HEED_DEVICE std::uint32_t kept_flags(const GradientCall& g, std::int64_t n) {
  return kept_word(g.rows.delta + n) & DoubleRow::all;
}

// What a query and a key that it sees give to the gradients: by the value, by the score, and by the product
// before a softcap.
struct DoublePair {
  bool is_seen = false;
  double applied = 0, score = 0, raw = 0;
};

enum class Wanted : std::uint8_t { weights, scores };

inline __device__ __noinline__ DoublePair double_pair(const GradientCall& g, const Query& q, std::int64_t j,
                                                      const DoubleRow& row, Wanted wanted) {
  const Call& c = g.forward;
  if (row.is(DoubleRow::hollow) || !sees(c, q, j)) return {};
  const std::int64_t kv_head = c.kv_head(q.h);
  const double product = double_dot(row_of(c.q, q), key_row(c, q.b, kv_head, j), c.dim) * c.scale,
               cap = static_cast<double>(c.cap), capped = c.cap != 0 ? cap * ::tanh(product / cap) : product,
               from_alibi = c.alibi.of_heads ? static_cast<double>(alibi_at(c, q, j)) : 0.0,
               from_bias = c.bias.data ? static_cast<double>(read(row_of(c.bias, q), j)) : 0.0,
               biased = capped + from_alibi + from_bias;
  if (biased == -__builtin_inf()) return {};
  const double lse = static_cast<double>(read(row_of(c.log_sum_exp, q), 0)),
               weight = ::exp(biased - lse);  // G1
  const double keep = c.drop_below == 0 ? 1.0 : drops(c, q, j) ? 0.0 : 1 / (1.0 - c.drop_probability);
  constexpr double nan = __builtin_nan("");
  if (wanted == Wanted::weights || row.is(DoubleRow::no_scores)) return {true, weight * keep, nan, nan};
  const double of_value = double_dot(row_of(g.out_gradient, q), value_row(c, q.b, kv_head, j), c.value_dim);
  const double slope = c.cap != 0 ? capped / cap : 0.0;
  const double score = weight * (keep * of_value + row.gradient);    // G3
  return {true, weight * keep, score, score * (1 - slope * slope)};  // G2, G4
}

// A row's facts, by a warp; `scratch` has a number for each of its lanes.
class DoubleRowFinder {
 public:
  HEED_DEVICE DoubleRowFinder(const GradientCall& call, double* memory)
      : g(call), c(call.forward), scratch(memory) {}

  HEED_DEVICE void find(std::int64_t n) const {
    const RowOfQueries of(g, n);
    if (!of.is_real) return put(n, {0, 0, DoubleRow::hollow});
    const Row q = row_of(c.q, of.q), gradient = row_of(g.out_gradient, of.q), out = row_of(c.out, of.q);
    bool q_is_nan = false, q_is_wild = false, gradient_is_nan = false, gradient_is_wild = false;
    double length = 0, delta = 0;
    for (std::int64_t d = lane_index(); d < c.dim; d += 32) {
      const float x = read(q, d);
      q_is_nan |= x != x, q_is_wild |= !is_finite(x);
      length += static_cast<double>(x) * static_cast<double>(x);
    }
    for (std::int64_t d = lane_index(); d < c.value_dim; d += 32) {
      const float x = read(gradient, d);
      gradient_is_nan |= x != x, gradient_is_wild |= !is_finite(x);
      delta += static_cast<double>(x) * static_cast<double>(read(out, d));
    }
    length = sum(length), delta = sum(delta);
    q_is_nan = warp_any(q_is_nan), q_is_wild = warp_any(q_is_wild);
    gradient_is_nan = warp_any(gradient_is_nan), gradient_is_wild = warp_any(gradient_is_wild);
    const float natural = read(row_of(c.log_sum_exp, of.q), 0);
    if (natural == minus_infinity) return put(n, {0, 0, DoubleRow::hollow});
    const double rest = static_cast<double>(log_sum_exp_gradient(g, of.q)) - delta;
    const bool no_weights = q_is_nan || natural != natural,
               no_scores = no_weights || gradient_is_nan || rest != rest,
               unsure = !q_is_nan && (q_is_wild || natural == -minus_infinity),
               special = q_is_wild || gradient_is_wild || !is_finite(natural) || !(rest - rest == 0);
    put(n, {rest, reach(of.q, length, natural),
            (no_weights ? DoubleRow::no_weights : 0) | (no_scores ? DoubleRow::no_scores : 0) |
                (unsure ? DoubleRow::unsure : 0) | (special ? DoubleRow::special : 0) |
                (gradient_is_wild ? DoubleRow::has_wild_gradient : 0)});
  }

 private:
  HEED_DEVICE void put(std::int64_t n, const DoubleRow& row) const {
    if (lane_index() == 0) keep(g, n, row);
  }
  // exp(x) is a number, and not 0, for x within 700 of 0. A bias may be anything.
  HEED_DEVICE float reach(const Query& q, double square, float lse) const {
    if (c.bias.data) return 0;
    const double distances = c.alibi.of_heads
                                 ? static_cast<double>(fabsf(c.alibi.of_heads[q.b * c.alibi.step + q.h])) *
                                       static_cast<double>(c.keys + c.queries)
                                 : 0.0,
                 room = 700 - static_cast<double>(fabsf(lse)) - distances,
                 most = room / (::fabs(c.scale) * ::sqrt(square) + 1e-30);
    return most > 0 ? static_cast<float>(most < 1e30 ? most : 1e30) : 0.0f;
  }
  HEED_DEVICE double sum(double x) const {
    sync_warp();
    scratch[lane_index()] = x;
    sync_warp();
    double all = 0;
    for (int n = 0; n < 32; ++n) all += scratch[n];
    return all;
  }

  const GradientCall& g;
  const Call& c;
  double* const scratch;
};

}  // namespace heed::cuda
