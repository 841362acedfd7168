// SPDX-License-Identifier: Apache-2.0
#include "cases/extremes.hpp"

#include <array>
#include <limits>

namespace heed::cases {
namespace {

using Four = std::array<float, 4>;

constexpr float infinity = std::numeric_limits<float>::infinity(),
                nan = std::numeric_limits<float>::quiet_NaN(), most = std::numeric_limits<float>::max();
constexpr std::int64_t heads = 2, queries = 3, dim = 4;

// Scores are the first dimension of the keys: q is (1, 0, 0, 0) and the scale 1. Value j is (2^j, 1, 1, 1).
Call scored(DType dtype, std::int64_t keys, Four score = {}) {
  Call call{.q = Tensor({1, heads, queries, dim}, dtype),
            .k = Tensor({1, 1, keys, dim}, dtype),
            .v = Tensor({1, 1, keys, dim}, dtype)};
  call.scale = 1.0f;
  for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) { call.q.set(b, h, i, d, d == 0 ? 1 : 0); });
  for_each(call.k.shape(), [&](auto b, auto h, auto j, auto d) {
    const auto n = static_cast<std::size_t>(j % 4);
    call.k.set(b, h, j, d, d == 0 ? score[n] : 0);
    call.v.set(b, h, j, d, d == 0 ? static_cast<float>(1 << n) : 1);
  });
  return call;
}

Call with_bias(Call call, Four bias) {
  call.bias = Tensor({1, 1, 1, call.keys()});
  for (std::int64_t j = 0; j < call.keys(); ++j)
    call.bias->set(0, 0, 0, j, bias[static_cast<std::size_t>(j % 4)]);
  return call;
}

Call with_values(Call call, Four first) {
  for (std::int64_t j = 0; j < call.keys(); ++j)
    call.v.set(0, 0, j, 0, first[static_cast<std::size_t>(j % 4)]);
  return call;
}

Call with_sink(Call call, float sink) {
  call.sink = Tensor({1, 1, 1, 1});
  call.sink->fill(sink);
  return call;
}

// Every query and key, in full: rows of q and k alike.
Call with_rows(Call call, Four q, std::array<Four, 4> k) {
  for_each(call.q.shape(),
           [&](auto b, auto h, auto i, auto d) { call.q.set(b, h, i, d, q[static_cast<std::size_t>(d)]); });
  for_each(call.k.shape(), [&](auto b, auto h, auto j, auto d) {
    call.k.set(b, h, j, d, k[static_cast<std::size_t>(j % 4)][static_cast<std::size_t>(d)]);
  });
  return call;
}

template <class Change>
Call changed(Call call, Change change) {
  change(call);
  return call;
}

void add_biases(std::vector<Extreme>& all, DType dtype, std::int64_t keys) {
  const Call plain = scored(dtype, keys);
  all.push_back(
      {"one bias of -2.5e38, the others of -3e38", with_bias(plain, {-3e38f, -2.5e38f, -3e38f, -3e38f}), 2});
  all.push_back({"every bias as low as a float goes", with_bias(plain, {-most, -most, -most, -most}), 3.75f});
  all.push_back({"every bias as low as a bf16 goes",
                 with_bias(plain, {-0x1.fep127f, -0x1.fep127f, -0x1.fep127f, -0x1.fep127f}), 3.75f});
  // What counts in other units is as far down as a bias that is no mask.
  all.push_back(
      {"one bias of -1e38, the others of -1.2e38, in small units",
       changed(with_bias(plain, {-1.2e38f, -1e38f, -1.2e38f, -1.2e38f}), [](Call& c) { c.scale = 0x1p-16f; }),
       2});
  all.push_back({"every bias half as low as a float goes",
                 changed(with_bias(plain, {-most / 2, -most / 2, -most / 2, -most / 2}),
                         [](Call& c) { c.scale = 0.125f; }),
                 3.75f});
  if (dtype != DType::f16) {
    const auto in_units = [](Call& c) { c.scale = 0x1p-16f; };
    all.push_back({"products that count beside biases as low as a float goes",
                   with_bias(scored(dtype, keys, {0, 0x1p80f, 0, 0}), {-most, -most, -most, -most}), 2});
    all.push_back({"products that count beside biases half as low, in other units",
                   changed(with_bias(scored(dtype, keys, {0, -0x1p90f, -0x1p90f, -0x1p90f}),
                                     {-most / 2, -most / 2, -most / 2, -most / 2}),
                           [](Call& c) { c.scale = 0.125f; }),
                   1});
    all.push_back(
        {"products that count beside one low bias",
         changed(with_bias(scored(dtype, keys, {0, 0x1p120f, 0, 0}), {-6e33f, -6e33f, -6e33f, -6e33f}),
                 in_units),
         2});
    all.push_back({"products and biases that leave the range together",
                   changed(with_bias(scored(dtype, keys, {-2.6e38f, -2.6e38f, -2.6e38f, -2.6e38f}),
                                     {-2e33f, -2e33f, -2e33f, -2e33f}),
                           in_units),
                   3.75f});
  }
  all.push_back({"the lowest bias beside 0", with_bias(plain, {-most, 0, 0, -most}), 3});
  all.push_back({"the lowest bias beside the next higher",
                 with_bias(plain, {-most, -most, -0x1.fffffcp127f, -most}), 4});
  all.push_back(
      {"the lowest bias beside a hidden key", with_bias(plain, {-most, -infinity, -most, -infinity}), 2.5f});
  all.push_back({"a bias of 3e38", with_bias(plain, {0, 3e38f, 0, 0}), 2});
  all.push_back({"a bias of infinity", with_bias(plain, {0, infinity, 0, 0}), nan});
  all.push_back({"a bias that is no number", with_bias(plain, {0, nan, 0, 0}), nan});
  all.push_back({"a bias of zeros over scores of -infinity",
                 with_bias(scored(dtype, keys, {-infinity, -infinity, -infinity, -infinity}), {}), 0});
}

void add_scores(std::vector<Extreme>& all, DType dtype, std::int64_t keys) {
  all.push_back(
      {"scores of -infinity", scored(dtype, keys, {-infinity, -infinity, -infinity, -infinity}), 0});
  all.push_back({"one score above -infinity", scored(dtype, keys, {-infinity, -infinity, 1, -infinity}), 4});
  all.push_back({"a score of infinity", scored(dtype, keys, {0, infinity, 0, 0}), nan});
  all.push_back({"a score that is no number", scored(dtype, keys, {0, 0, nan, 0}), nan});
  all.push_back({"a score of infinity under a softcap",
                 changed(scored(dtype, keys, {0, infinity, 0, 0}), [](Call& c) { c.softcap = 1000.0f; }), 2});
  all.push_back(
      {"no number under a dropout of nearly everything",
       changed(scored(dtype, keys, {0, 0, nan, 0}), [](Call& c) { c.dropout = Dropout{1 - 0x1p-24f, 1}; }),
       0});
  if (dtype == DType::f16) return;
  all.push_back({"scores of -2.5e38", scored(dtype, keys, {-2.5e38f, -2.5e38f, -2.5e38f, -2.5e38f}), 3.75f});
  all.push_back({"one score of -2.4e38, the others of -3e38",
                 scored(dtype, keys, {-3e38f, -2.4e38f, -3e38f, -3e38f}), 2});
  all.push_back({"a score of 3e38", scored(dtype, keys, {0, 3e38f, 0, 0}), 2});
  const Four up{1e20f, 1e20f, 0, 0}, down{-1e20f, 1e20f, 0, 0};
  all.push_back({"sums that leave the range downwards and come back",
                 with_rows(scored(dtype, keys), up, {down, down, down, down}), 3.75f});
  all.push_back({"sums that leave the range upwards and come back",
                 with_rows(scored(dtype, keys), down, {up, Four{-1e20f, -1e20f, 0, 0}, up, up}), 3.75f});
  all.push_back({"a scale that only the keys bring back",
                 changed(with_rows(scored(dtype, keys), {0x1p100f, 0, 0, 0},
                                   {Four{0x1p-100f, 0, 0, 0}, Four{0x1p-100f, 0, 0, 0},
                                    Four{0x1p-100f, 0, 0, 0}, Four{0x1p-100f, 0, 0, 0}}),
                         [](Call& c) { c.scale = 0x1p40f; }),
                 3.75f});
}

void add_options(std::vector<Extreme>& all, DType dtype, std::int64_t keys) {
  const Call plain = scored(dtype, keys);
  all.push_back({"a sink of 3e38", with_sink(plain, 3e38f), 0});
  all.push_back({"a sink as low as a float goes", with_sink(plain, -most), 3.75f});
  all.push_back({"a sink and biases as low as a float goes",
                 with_sink(with_bias(scored(dtype, keys), {-most, -infinity, -infinity, -infinity}), -most),
                 static_cast<float>(keys / 4) / static_cast<float>(keys / 4 + 1)});
  all.push_back({"an ordinary sink over the lowest biases",
                 with_sink(with_bias(plain, {-most, -most, -3e38f, -most}), 0), 0});
  all.push_back({"a sink of infinity", with_sink(plain, infinity), nan});
  all.push_back({"a sink that is no number", with_sink(plain, nan), nan});
  all.push_back({"a softcap of 3e38", changed(plain, [](Call& c) { c.softcap = 3e38f; }), 3.75f});
  all.push_back({"a scale of 3e38, and queries of 0",
                 changed(scored(dtype, keys), [](Call& c) { c.scale = 3e38f, c.q.fill(0); }), 3.75f});
}

void add_values(std::vector<Extreme>& all, DType dtype, std::int64_t keys) {
  const Call plain = scored(dtype, keys);
  all.push_back({"values of infinity", with_values(plain, {infinity, infinity, 1, 1}), infinity});
  all.push_back({"infinities of both signs", with_values(plain, {infinity, -infinity, 1, 1}), nan});
  all.push_back({"a value that is no number", with_values(plain, {1, nan, 1, 1}), nan});
  all.push_back({"a value that is no number, of a faint key",
                 with_values(scored(dtype, keys, {0, -1000, 0, 0}), {1, nan, 1, 1}), nan});
  const float large = dtype == DType::f16 ? 0x1.ffcp15f : 0x1.fep127f;
  all.push_back(
      {"equal values at the end of the range", with_values(plain, {large, large, large, large}), large});
  all.push_back(
      {"the ends of the range side by side", with_values(plain, {-large, large, large, -large}), 0});
  all.push_back({"infinity before values that overflow",
                 with_values(plain, {infinity, -large, -large, -large}), infinity});
}

}  // namespace

std::vector<Extreme> extremes(DType dtype, std::int64_t keys) {
  std::vector<Extreme> all;
  add_biases(all, dtype, keys);
  add_scores(all, dtype, keys);
  add_options(all, dtype, keys);
  add_values(all, dtype, keys);
  return all;
}

}  // namespace heed::cases
