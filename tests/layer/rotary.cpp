// SPDX-License-Identifier: Apache-2.0
// The laws of rotary embedding (S15): lengths stay, only differences of positions matter, position 0 is no
// turn.
#include <algorithm>
#include <numeric>

#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

Tensor turned(Tensor x, const std::vector<std::int64_t>& positions, const Rotary& rotary = {}) {
  rotate(x.mutable_view(), positions, rotary);
  return x;
}

TEST(rotary, a_quarter_turn_by_hand) {
  // One pair has frequency 1, so position p turns (1, 0) to (cos p, sin p).
  const Tensor x{{1, 1, 3, 2}, {1, 0, 1, 0, 0, 2}};
  const Tensor y = turned(x, {0, 1, 1});
  const double c = std::cos(1.0), s = std::sin(1.0);
  EXPECT_EQ(far_misses(y.values, std::vector<double>{1, 0, c, s, -2 * s, 2 * c}, 1e-7), 0);
}

TEST(rotary, pairs_turn_by_powers_of_the_base) {
  // Four dims, base 100: frequencies 1 and 1/10; halves pairs (0, 2) and (1, 3), adjacent pairs (0, 1) and
  // (2, 3).
  const Tensor x{{1, 1, 1, 4}, {1, 1, 0, 0}};
  const std::vector<double> halves{std::cos(7.0), std::cos(0.7), std::sin(7.0), std::sin(0.7)};
  EXPECT_EQ(far_misses(turned(x, {7}, {.base = 100}).values, halves, 1e-7), 0);
  const Tensor z{{1, 1, 1, 4}, {1, 0, 1, 0}};
  const std::vector<double> adjacent{std::cos(7.0), std::sin(7.0), std::cos(0.7), std::sin(0.7)};
  EXPECT_EQ(far_misses(turned(z, {7}, {.base = 100, .pairs = RotaryPairs::adjacent}).values, adjacent, 1e-7),
            0);
}

TEST(rotary, position_zero_changes_no_bit) {
  const Tensor x = random_tensor({2, 3, 4, 8}, 1);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::adjacent})
    EXPECT_EQ(bit_misses(turned(x, {0, 0, 0, 0}, {.pairs = pairs}).values, x.values), 0);
}

TEST(rotary, turning_keeps_the_length_of_every_pair) {
  const Tensor x = random_tensor({1, 2, 5, 8}, 2);
  const Tensor y = turned(x, {1, 10, 1000, -3, 123456789});
  std::int64_t misses = 0;
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t i = 0; i < 5; ++i)
      for (std::int64_t d = 0; d < 4; ++d) {
        const double before = std::hypot(x.at(0, h, i, d), x.at(0, h, i, d + 4));
        const double after = std::hypot(y.at(0, h, i, d), y.at(0, h, i, d + 4));
        misses += std::abs(before - after) > 1e-6 ? 1 : 0;
      }
  EXPECT_EQ(misses, 0);
  EXPECT_NE(bit_misses(x.values, y.values), 0);
}

double dot(const Tensor& a, const Tensor& b) {
  return std::inner_product(a.values.begin(), a.values.end(), b.values.begin(), 0.0);
}

TEST(rotary, scores_depend_on_the_difference_of_positions) {
  const Tensor q = random_tensor({1, 1, 1, 16}, 3), k = random_tensor({1, 1, 1, 16}, 4);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::adjacent}) {
    const Rotary rotary{.pairs = pairs};
    const double near = dot(turned(q, {9}, rotary), turned(k, {4}, rotary));
    EXPECT_NEAR(dot(turned(q, {5}, rotary), k), near, 1e-5);
    EXPECT_NEAR(dot(turned(q, {100009}, rotary), turned(k, {100004}, rotary)), near, 1e-5);
    EXPECT_GT(std::abs(dot(turned(q, {9}, rotary), turned(k, {5}, rotary)) - near), 1e-3);
  }
}

TEST(rotary, adjacent_pairs_are_halves_with_the_dims_reordered) {
  const Tensor x = random_tensor({1, 2, 3, 8}, 5);
  const std::vector<std::int64_t> positions{2, 30, 400};
  Tensor reordered = x;
  const auto half_of = [](std::int64_t d) {
    return d % 2 == 0 ? d / 2 : 4 + d / 2;
  };  // where adjacent dim d goes
  const auto for_each = [](const auto& body) {
    for (std::int64_t h = 0; h < 2; ++h)
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t d = 0; d < 8; ++d) body(h, i, d);
  };
  for_each(
      [&](auto h, auto i, auto d) { reordered.values[x.index(0, h, i, half_of(d))] = x.at(0, h, i, d); });
  const Tensor adjacent = turned(x, positions, {.pairs = RotaryPairs::adjacent}),
               halves = turned(reordered, positions);
  Tensor back = halves;
  for_each(
      [&](auto h, auto i, auto d) { back.values[x.index(0, h, i, d)] = halves.at(0, h, i, half_of(d)); });
  EXPECT_EQ(bit_misses(adjacent.values, back.values), 0);
  EXPECT_NE(bit_misses(adjacent.values, turned(x, positions).values), 0);
}

TEST(rotary, only_the_leading_dims_turn) {
  const Tensor x = random_tensor({1, 1, 2, 10}, 6);
  const Tensor y = turned(x, {3, 4}, {.dims = 6});
  Tensor head{{1, 1, 2, 6}, {}};
  std::int64_t misses = 0;
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t d = 0; d < 10; ++d) {
      if (d < 6) head.values.push_back(x.at(0, 0, i, d));
      if (d >= 6) misses += x.at(0, 0, i, d) != y.at(0, 0, i, d) ? 1 : 0;
    }
  EXPECT_EQ(misses, 0);
  const Tensor whole = turned(head, {3, 4});
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t d = 0; d < 6; ++d) misses += whole.at(0, 0, i, d) != y.at(0, 0, i, d) ? 1 : 0;
  EXPECT_EQ(misses, 0);
}

TEST(rotary, positions_may_differ_between_batch_entries) {
  const Tensor x = random_tensor({2, 2, 3, 4}, 7);
  const Tensor y = turned(x, {5, 6, 7, 50, 60, 70});
  const Tensor first = turned(x, {5, 6, 7}), second = turned(x, {50, 60, 70});
  std::vector<float> wanted = first.values;
  std::copy(second.values.begin() + 24, second.values.end(), wanted.begin() + 24);
  EXPECT_EQ(bit_misses(y.values, wanted), 0);
}

// So many tokens that they turn on all threads; of scalings that look at the length and those that do not.
TEST(rotary, a_token_turns_as_if_alone) {
  const int before = num_threads();
  set_num_threads(3);
  const Tensor x = random_tensor({2, 3, 101, 32}, 10);
  const std::vector<std::int64_t> lengths{150, 400};
  for (const bool are_shared : {true, false})
    for (const Rotary& rotary :
         {Rotary{}, Rotary{.dims = 30, .scaling = DynamicScaling{.factor = 2, .original_length = 128}}}) {
      const std::vector<std::int64_t> positions = counted(are_shared ? 101 : 202, 40);
      Tensor all = x;
      rotate(all.mutable_view(), positions, rotary, lengths);
      std::int64_t misses = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t i = 0; i < 101; ++i) {
          Tensor token{{1, 3, 1, 32}, {}};
          for (std::int64_t h = 0; h < 3; ++h)
            for (std::int64_t d = 0; d < 32; ++d) token.values.push_back(x.at(b, h, i, d));
          const std::int64_t position = 40 + i + (are_shared ? 0 : 101 * b);
          rotate(token.mutable_view(), {{position}}, rotary, {{lengths[static_cast<std::size_t>(b)]}});
          for (std::int64_t h = 0; h < 3; ++h)
            for (std::int64_t d = 0; d < 32; ++d)
              misses += all.at(b, h, i, d) != token.at(0, h, 0, d) ? 1 : 0;
        }
      EXPECT_EQ(misses, 0) << (are_shared ? "shared positions" : "own positions");
    }
  set_num_threads(before);
}

TEST(rotary, strides_change_no_bit_and_gaps_stay_untouched) {
  const Tensor x = random_tensor({2, 3, 4, 6}, 8);
  const Tensor packed = turned(x, counted(4, 11));
  const Strides stride{200, 2, 40, 6};  // dims 6 apart, heads 2 apart, one element between them
  std::vector<float> memory(400, untouched);
  const auto place = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    return static_cast<std::size_t>(b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim);
  };
  const auto for_each = [](const auto& body) {
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t i = 0; i < 4; ++i)
          for (std::int64_t d = 0; d < 6; ++d) body(b, h, i, d);
  };
  for_each([&](auto b, auto h, auto i, auto d) { memory[place(b, h, i, d)] = x.at(b, h, i, d); });
  rotate({memory.data(), x.shape, stride}, counted(4, 11));
  std::int64_t misses = 0;
  for_each([&](auto b, auto h, auto i, auto d) {
    misses += memory[place(b, h, i, d)] != packed.at(b, h, i, d) ? 1 : 0;
    memory[place(b, h, i, d)] = untouched;
  });
  for (const float value : memory) misses += value != untouched ? 1 : 0;
  EXPECT_EQ(misses, 0);
}

template <class T>
std::int64_t turned_halves_missed() {
  const Shape shape{1, 2, 3, 8};
  std::vector<T> stored;
  Tensor x{shape, {}};
  for (const float value : random_floats(shape.elements(), 9)) {
    stored.push_back(from_float<T>(value));
    x.values.push_back(to_float(stored.back()));
  }
  rotate({stored, shape}, counted(3, 2));
  const Tensor wide = turned(x, counted(3, 2));
  std::int64_t misses = 0;
  for (std::size_t n = 0; n < stored.size(); ++n)
    misses += stored[n].bits != from_float<T>(wide.values[n]).bits ? 1 : 0;
  return misses;
}

TEST(rotary, sixteen_bit_elements_are_rounded_once) {
  EXPECT_EQ(turned_halves_missed<f16>(), 0);
  EXPECT_EQ(turned_halves_missed<bf16>(), 0);
}

TEST(rotary, a_layer_with_rotary_sees_only_differences) {
  const LayerConfig c{.model_dim = 16, .heads = 2, .kv_heads = 1, .rotary = Rotary{}};
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 5, 16}, 2), other = random_tensor({2, 1, 5, 16}, 3);
  const std::vector<std::int64_t> zeros = counted(5), late = counted(5, 1000);
  const Tensor y = run(layer, {.x = x.view()});
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .positions = zeros}).values, y.values), 0);
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .key_positions = zeros}).values, y.values), 0);
  EXPECT_EQ(far_misses(run(layer, {.x = x.view(), .positions = late}).values, y.values, 1e-5), 0);
  const Tensor apart = run(layer, {.x = x.view(), .positions = late, .key_positions = zeros});
  double largest_difference = 0;
  for (std::size_t n = 0; n < y.values.size(); ++n)
    largest_difference =
        std::max(largest_difference, std::abs(static_cast<double>(apart.values[n] - y.values[n])));
  EXPECT_GT(largest_difference, 1e-3);
  // Where x is not the context, the keys count from 0 whatever the queries' positions are.
  const AttentionLayer::Call cross{.x = x.view(), .context = other.view(), .positions = late};
  const AttentionLayer::Call said{
      .x = x.view(), .context = other.view(), .positions = late, .key_positions = zeros};
  EXPECT_EQ(bit_misses(run(layer, cross).values, run(layer, said).values), 0);
}

TEST(rotary, bad_input_is_refused_before_anything_turns) {
  Tensor x = random_tensor({2, 1, 3, 6}, 10);
  const Tensor before = x;
  const auto refused = [&](Error::Code code, const char* sentence, std::vector<std::int64_t> positions,
                           Rotary rotary) {
    expect_refusal(code, sentence, [&] { rotate(x.mutable_view(), positions, rotary); });
  };
  refused(Error::shape, "positions: 2 entries are neither x.length: 3 nor x.batch * x.length: 6", {0, 1}, {});
  refused(Error::shape, "positions: 0 entries are neither x.length: 3 nor x.batch * x.length: 6", {}, {});
  refused(Error::value, "rotary.dims: 3 is not a positive even number", {0, 1, 2}, {.dims = 3});
  refused(Error::value, "rotary.dims: 0 is not a positive even number", {0, 1, 2}, {.dims = 0});
  refused(Error::value, "rotary.dims: 8 is more than the head's dim: 6", {0, 1, 2}, {.dims = 8});
  refused(Error::value, "rotary.base: -1 is not a positive finite number", {0, 1, 2}, {.base = -1});
  expect_refusal(Error::overlap, "x.stride.batch: 0 puts 2 results in one place",
                 [&] { rotate({x.values.data(), x.shape, {0, 0, 6, 1}}, counted(3)); });
  EXPECT_EQ(bit_misses(x.values, before.values), 0);
}

}  // namespace
}  // namespace heed::layer_tests
