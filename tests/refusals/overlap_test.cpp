// SPDX-License-Identifier: Apache-2.0
// The overlap checks against a count of bytes: two arrays are refused when they share one, and only then.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "call/make_problem.hpp"
#include "cases/selection.hpp"
#include "refusals/call.hpp"

namespace heed {
namespace {

const std::int64_t enough_views = cases::small_selection() ? 200 : 1000;  // of 10000 seeds

alignas(64) std::array<std::byte, 1 << 16> block{};

// How often each byte of the block belongs to an element.
std::map<std::int64_t, int> bytes_of_array(const Argument& a) {
  std::map<std::int64_t, int> bytes;
  const std::int64_t start = static_cast<const std::byte*>(a.data) - block.data();
  for (std::int64_t b = 0; b < a.shape.batch; ++b)
    for (std::int64_t h = 0; h < a.shape.heads; ++h)
      for (std::int64_t i = 0; i < a.shape.length; ++i)
        for (std::int64_t d = 0; d < a.shape.dim; ++d) {
          const Strides& s = a.stride;
          const std::int64_t element = b * s.batch + h * s.heads + i * s.length + d * s.dim;
          for (std::int64_t byte = 0; byte < a.element_bytes; ++byte)
            ++bytes[start + element * a.element_bytes + byte];
        }
  return bytes;
}

bool share_a_byte(const Argument& a, const Argument& b) {
  const auto ours = bytes_of_array(a), theirs = bytes_of_array(b);
  return std::any_of(ours.begin(), ours.end(),
                     [&](const auto& entry) { return theirs.contains(entry.first); });
}

bool has_own_places(const Argument& a) {
  const auto bytes = bytes_of_array(a);
  return std::all_of(bytes.begin(), bytes.end(), [](const auto& entry) { return entry.second == 1; });
}

template <class Check>
std::string refusal_by(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class RandomViews {
 public:
  explicit RandomViews(std::uint64_t seed) : random_(static_cast<std::uint32_t>(seed)) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  View next() {
    const DType dtype = pick(0, 1) == 0 ? DType::f32 : DType::f16;
    const std::int64_t max_stride =
        std::array<std::int64_t, 3>{4, 16, 40}[static_cast<std::size_t>(pick(0, 2))];
    const auto stride = [&] { return pick(0, max_stride); };
    return {block.data() + pick(0, 80) * 2,
            {pick(1, 3), pick(1, 3), pick(0, 4), pick(1, 4)},
            {stride(), stride(), stride(), stride()},
            dtype};
  }

 private:
  std::mt19937 random_;
};

TEST(Overlap, two_arrays_are_refused_when_they_share_a_byte_and_only_then) {
  std::int64_t wrong = 0, apart_but_interleaved = 0, shared = 0;
  for (const std::uint64_t seed : cases::seeds(0, 10000)) {
    RandomViews views(seed);
    const View first = views.next();
    View second = views.next();
    if (views.pick(0, 1) == 1) second.stride = first.stride;
    const Argument a("a", first), b("b", second);
    const bool expected = share_a_byte(a, b);
    const std::string refused = refusal_by([&] { check_apart(a, b); });
    if (refused != (expected ? "a: shares memory with b" : "") && wrong++ == 0)
      ADD_FAILURE() << "seed " << seed << ": share a byte: " << expected << ", refused: " << refused;
    shared += expected;
    if (expected || a.empty() || b.empty()) continue;
    const auto *const x = static_cast<const std::byte*>(a.data), *const y =
                                                                     static_cast<const std::byte*>(b.data);
    apart_but_interleaved += x < y + reach_bytes(b) && y < x + reach_bytes(a);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(shared, enough_views);
  EXPECT_GT(apart_but_interleaved, enough_views);
}

TEST(Overlap, an_output_is_accepted_only_if_each_element_has_its_own_place) {
  std::int64_t wrong = 0, accepted = 0, refused = 0;
  for (const std::uint64_t seed : cases::seeds(0, 10000)) {
    const Argument a("a", RandomViews(seed).next());
    const bool accepts = refusal_by([&] { check_own_places(a); }).empty();
    ++(accepts ? accepted : refused);
    if (accepts && !has_own_places(a) && wrong++ == 0) ADD_FAILURE() << "seed " << seed;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(accepted, enough_views);
  EXPECT_GT(refused, enough_views);
}

TEST(Overlap, axes_that_nest_in_any_order_give_each_element_its_own_place) {
  std::int64_t wrong = 0;
  for (const std::uint64_t seed : cases::seeds(0, 10000)) {
    RandomViews random(seed);
    std::array<std::size_t, 4> order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<std::uint32_t>(seed)));
    Axes extent{}, stride{};
    std::int64_t span = 1;
    for (const std::size_t axis : order) {
      extent[axis] = random.pick(1, 4);
      stride[axis] = extent[axis] == 1 ? random.pick(0, 3) : span + random.pick(0, 2);
      span += (extent[axis] - 1) * stride[axis];
    }
    const Argument a("a", View{block.data(),
                               {extent[0], extent[1], extent[2], extent[3]},
                               {stride[0], stride[1], stride[2], stride[3]},
                               DType::f32});
    const std::string refused = refusal_by([&] { check_own_places(a); });
    if (!refused.empty() && wrong++ == 0) ADD_FAILURE() << "seed " << seed << ": " << refused;
  }
  EXPECT_EQ(wrong, 0);
}

const void* far_away(std::uintptr_t element) {
  return reinterpret_cast<const void*>((std::uintptr_t{1} << 40) + 2 * element);
}

// Four strides that hardly differ: 80 steps of any kind end past the output and 79 before it, but only trying
// tells.
TEST(Overlap, a_question_too_long_to_answer_is_a_refusal) {
  const Argument input("q",
                       View{far_away(0), {40, 40, 40, 40}, {100001, 100003, 100007, 100013}, DType::f16});
  const Argument output("out", View{far_away(80 * 100000 + 1), {1, 1, 1, 1}, {}, DType::f16});
  EXPECT_EQ(refusal_by([&] { check_apart(output, input); }),
            "out: interleaves with q in a way that cannot be shown to share no memory");
}

TEST(Overlap, an_odd_element_among_even_ones_is_apart_however_many_there_are) {
  const Argument input("q",
                       View{far_away(0), {40, 40, 40, 40}, {200002, 200006, 200014, 200026}, DType::f16});
  const Argument output("out", View{far_away(80 * 200000 + 1), {1, 1, 1, 1}, {}, DType::f16});
  EXPECT_EQ(refusal_by([&] { check_apart(output, input); }), "");
}

}  // namespace
}  // namespace heed
