// SPDX-License-Identifier: Apache-2.0
// What the claims of the matrix units share: problems that are ranges of keys, and the bound of the
// reference.
#pragma once
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cases/random_call.hpp"
#include "cases/tensor.hpp"
#include "claims.hpp"
#include "heed/check.hpp"
#include "kernels.hpp"

namespace heed::cuda::test {

using cases::Call;
using cases::Dice;
using cases::Results;
using cases::Tensor;
using cases::Wants;
using claims::expect;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
const std::string prefill = "cuda.prefill", decode = "cuda.decode", general = "cuda.general";

// Those that the device has: one before Hopper has the general kernel alone, and HEED_CUDA_ARCH may name one.
inline std::vector<std::string> of_device(std::vector<std::string> kernels) {
  std::erase_if(kernels, [has = kernel_names()](const auto& kernel) {
    return std::find(has.begin(), has.end(), kernel) == has.end();
  });
  return kernels;
}

// A problem that prefill takes, from a seed: lengths around the edges of tiles, ranges of keys, heads that
// are shared.
inline Call range_call(std::uint64_t seed, std::int64_t max_queries) {
  Dice dice(seed);
  const std::int64_t any_dim = 8 * dice.between(1, 32),
                     dim = dice.pick<std::int64_t>({32, 64, 96, 128, 128, 192, 256, any_dim, any_dim}),
                     value_dim =
                         dice.one_in(4) ? dice.pick<std::int64_t>({128, 8 * dice.between(1, 32)}) : dim;
  const std::int64_t kv_heads = dice.between(1, 2);
  const std::int64_t heads = kv_heads * dice.pick<std::int64_t>({1, 2, 4}), batch = dice.between(1, 2);
  const std::int64_t keys =
      dice.pick<std::int64_t>({1, 5, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 383, 500, 1030});
  const std::int64_t queries = max_queries == 1 ? 1 : dice.between(1, max_queries);
  const DType dtype = dice.one_in(2) ? DType::bf16 : DType::f16;
  Call call{.q = Tensor::random({batch, heads, queries, dim}, 3 * seed, 4, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, value_dim}, 3 * seed + 2, 2, dtype)};
  const Align align = dice.one_in(3) ? Align::starts : Align::ends;
  if (dice.one_in(2)) call.causal = Causal{align};
  if (dice.one_in(3)) call.window = Window{dice.between(0, 300), dice.between(0, 40), align};
  if (dice.one_in(3)) {
    call.key_lengths.emplace();
    for (std::int64_t b = 0; b < batch; ++b)
      call.key_lengths->push_back(static_cast<std::int32_t>(dice.between(0, keys)));
  }
  if (dice.one_in(4)) call.sink = Tensor::random({1, heads, 1, 1}, seed ^ 0x51Du, 4);
  if (dice.one_in(4)) call.softcap = dice.pick<float>({2.0f, 30.0f});
  if (dice.one_in(4)) call.scale = dice.pick<float>({0.125f, 0.5f});
  if (dice.one_in(4)) call.head_map = HeadMap::tiled;
  return call;
}

// A problem of ranges with one option more at least: boolean masks, documents, a bias, ALiBi or dropout.
inline Call optional_call(std::uint64_t seed) {
  Call call = range_call(seed, 300);
  Dice dice(seed ^ 0x0B7105u);
  const Shape full = call.score_shape();
  const std::int64_t always = dice.between(0, 4);
  if (always == 0 || dice.one_in(5))
    call.matrices.push_back(
        {cases::random_bools(dice, cases::broadcast_some(dice, full), 3), dice.one_in(2)});
  if (always == 1 || dice.one_in(5)) call.documents = cases::random_documents(dice, full);
  if (always == 2 || dice.one_in(5)) cases::add_random_bias(dice, call, seed ^ 0xB1A5u);
  if (always == 3 || dice.one_in(5)) {
    call.alibi = cases::Slopes{.align = dice.one_in(2) ? Align::ends : Align::starts};
    const std::int64_t slopes = (dice.one_in(3) ? full.batch : 1) * full.heads;
    for (std::int64_t n = 0; n < slopes; ++n)
      call.alibi->of_heads.push_back(dice.pick<float>({0.5f, 0.0390625f, 0.1f, 2.0f, -0.003f, 0.0f}));
  }
  if (always == 4 || dice.one_in(5))
    call.dropout = Dropout{dice.pick<float>({0.1f, 0.5f, 0.9f}), dice.bits()};
  return call;
}

// Each option that attention() has, now and then.
inline void add_random_options(Dice& dice, Call& call, std::uint64_t seed) {
  if (dice.one_in(2)) cases::add_random_masks(dice, call);
  if (dice.one_in(4)) call.documents = cases::random_documents(dice, call.score_shape());
  if (dice.one_in(4)) cases::add_random_bias(dice, call, seed ^ 0xB1A5u);
  if (dice.one_in(4)) call.sink = Tensor::random({1, call.heads(), 1, 1}, seed ^ 0x51Du, 4);
  if (dice.one_in(5)) call.softcap = dice.pick<float>({2.0f, 30.0f});
  if (dice.one_in(5)) call.dropout = Dropout{0.3f, dice.bits()};
  if (dice.one_in(4)) call.head_map = HeadMap::tiled;
}

inline void expect_right(const std::string& kernel, const Call& call, const Wants& wants,
                         const std::string& what) {
  auto got = run(kernel, call, wants);
  expect(got.has_value(), kernel, " refuses ", what);
  if (!got) return;
  const Check result = check(call.inputs(), got->outputs(), call.options());
  expect(result.beyond_bound == 0, kernel, ", ", what, ": ", result.beyond_bound, " of ", result.compared,
         " beyond the bound, first ", result.first_miss);
}

// Under a softcap of up to 55 the weights of bf16 are powers of the scores themselves: from 2^-80 to 2^80,
// whose sums with values of 10^30 f32 cannot hold, nor their products with values of 10^-30. Scores of some
// rows are all as low as the cap lets them be.
inline void expect_right_at_a_softcap(DType dtype, std::int64_t dim, float cap) {
  Call call{.q = Tensor::random({1, 2, 200, dim}, 321, 400, dtype),
            .k = Tensor::random({1, 2, 300, dim}, 322, 2, dtype),
            .v = Tensor::random({1, 2, 300, dim}, 323, 2, dtype)};
  cases::for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) {
    if (i % 3 == 0) call.q.set(b, h, i, d, i % 2 == 0 ? 30.0f : -30.0f);
  });
  cases::for_each(call.k.shape(), [&](auto b, auto, auto j, auto d) { call.k.set(b, 0, j, d, 2.0f); });
  call.causal = Causal{Align::ends}, call.softcap = cap;
  const std::string what = std::to_string(dim) + " dimensions, cap " + std::to_string(cap);
  const auto expect_so = [&](const char* more) {
    expect_right(prefill, call, {.log_sum_exp = true}, what + more);
  };
  expect_so("");
  call.sink = Tensor::random({1, 2, 1, 1}, 324, 80);
  expect_so(", a sink");
  for (const std::int64_t h : {0, 1}) call.sink->set(0, h, 0, 0, 95.0f);
  expect_so(", a sink above every score");
  call.sink.reset();
  if (dtype == DType::f16) return;
  for (const float value : {1e30f, 1e-30f}) {
    cases::for_each(call.v.shape(), [&](auto b, auto h, auto j, auto d) {
      call.v.set(b, h, j, d, j % 2 == 0 ? value : -2 * value);
    });
    expect_so(value > 1 ? ", large values" : ", small values");
  }
}

// The first rows of one batch entry.
inline Tensor entry(const Tensor& x, std::int64_t b, std::int64_t rows) {
  Tensor made({1, x.shape().heads, rows, x.shape().dim}, x.dtype());
  cases::for_each(made.shape(),
                  [&](auto, auto h, auto i, auto d) { made.set(0, h, i, d, x.at(b, h, i, d)); });
  return made;
}

// Wider heads whose further dimensions are 0: zeros that the kernels fill in themselves.
inline Tensor widened(const Tensor& x, std::int64_t dim) {
  Tensor wide({x.shape().batch, x.shape().heads, x.shape().length, dim}, x.dtype());
  cases::for_each(wide.shape(), [&](auto b, auto h, auto i, auto d) {
    wide.set(b, h, i, d, d < x.shape().dim ? x.at(b, h, i, d) : 0.0f);
  });
  return wide;
}

inline bool same_bits(const Tensor& a, const Tensor& b) { return a.memory() == b.memory(); }

}  // namespace heed::cuda::test
