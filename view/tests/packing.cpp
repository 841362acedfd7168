// SPDX-License-Identifier: Apache-2.0
// Deflate, judged by a reader that shares no code with it; Python's zlib judges it too
// (tests/python/test_view.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "view/deflate.hpp"

namespace HEED_NAMESPACE::view {
namespace {

// RFC 1951 as plainly as it can be read: bit by bit, codes looked for one after another.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  std::vector<std::uint8_t> read() {
    for (bool is_last = false; !is_last;) {
      is_last = bits(1) == 1;
      EXPECT_EQ(bits(2), 2U);
      read_block();
    }
    EXPECT_EQ((place_ + 7) / 8, bytes_.size());
    return out_;
  }

 private:
  using Lengths = std::vector<int>;

  std::uint32_t bits(int count) {
    std::uint32_t value = 0;
    for (int i = 0; i < count; ++i, ++place_)
      value |= static_cast<std::uint32_t>(bytes_.at(place_ / 8) >> (place_ % 8) & 1) << i;
    return value;
  }

  int symbol(const Lengths& lengths) {
    int code = 0, first = 0;
    for (int length = 1; length <= 15; ++length) {
      code = code << 1 | static_cast<int>(bits(1));
      const auto count = static_cast<int>(std::count(lengths.begin(), lengths.end(), length));
      if (code - first < count) {
        int nth = code - first;
        for (std::size_t i = 0;; ++i)
          if (lengths[i] == length && nth-- == 0) return static_cast<int>(i);
      }
      first = (first + count) << 1;
    }
    throw std::runtime_error("no such code");
  }

  Lengths read_lengths(std::size_t count, const Lengths& code) {
    Lengths lengths;
    while (lengths.size() < count) {
      const int next = symbol(code);
      if (next < 16)
        lengths.push_back(next);
      else if (next == 16)
        lengths.insert(lengths.end(), 3 + bits(2), lengths.back());
      else
        lengths.insert(lengths.end(), next == 17 ? 3 + bits(3) : 11 + bits(7), 0);
    }
    return lengths;
  }

  void read_block() {
    const std::size_t literals = 257 + bits(5), distances = 1 + bits(5), count = 4 + bits(4);
    constexpr std::array<std::size_t, 19> order = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                   11, 4,  12, 3, 13, 2, 14, 1, 15};
    Lengths code(19);
    for (std::size_t i = 0; i < count; ++i) code[order[i]] = static_cast<int>(bits(3));
    const Lengths all = read_lengths(literals + distances, code);
    const Lengths literal(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(literals)),
        distance(all.begin() + static_cast<std::ptrdiff_t>(literals), all.end());
    for (int next = symbol(literal); next != 256; next = symbol(literal)) {
      if (next < 256) {
        out_.push_back(static_cast<std::uint8_t>(next));
        continue;
      }
      const std::size_t length = next == 285 ? 258 : ranged(static_cast<std::size_t>(next) - 257, 4, 3);
      const std::size_t back = ranged(static_cast<std::size_t>(symbol(distance)), 2, 1);
      for (std::size_t i = 0; i < length; ++i) out_.push_back(out_.at(out_.size() - back));
    }
  }

  // The tables of 3.2.5 by their rule: so many classes for each number of extra bits.
  std::size_t ranged(std::size_t index, std::size_t width, std::size_t first) {
    if (index < 2 * width) return first + index;
    const std::size_t extra = index / width - 1;
    return first + ((width + index % width) << extra) + bits(static_cast<int>(extra));
  }

  const std::string& bytes_;
  std::size_t place_ = 0;
  std::vector<std::uint8_t> out_{};
};

void expect_round_trip(const std::vector<std::uint8_t>& bytes) {
  EXPECT_TRUE(Reader(deflate(bytes)).read() == bytes) << bytes.size() << " bytes";
}

TEST(Deflate, what_was_packed_comes_back) {
  expect_round_trip({});
  expect_round_trip({7});
  std::mt19937 random(5);
  for (const std::size_t size : {2U, 3U, 258U, 259U, 4000U, 70000U}) {
    std::vector<std::uint8_t> noise(size), steps(size), runs(size), one(size, 200);
    for (std::size_t i = 0; i < size; ++i) {
      noise[i] = static_cast<std::uint8_t>(random());
      steps[i] = static_cast<std::uint8_t>(i % 251);
      runs[i] = i > 0 && random() % 50 ? runs[i - 1] : static_cast<std::uint8_t>(random());
    }
    for (const auto* bytes : {&noise, &steps, &runs, &one}) expect_round_trip(*bytes);
  }
}

TEST(Deflate, counts_that_grow_like_fibonaccis_numbers_stay_within_fifteen_bits) {
  std::vector<std::uint8_t> bytes;
  std::size_t a = 1, b = 1;
  for (std::uint8_t symbol = 0; symbol < 22; ++symbol) {
    bytes.insert(bytes.end(), a, symbol);
    std::swap(a, b);
    b += a;
  }
  std::shuffle(bytes.begin(), bytes.end(), std::mt19937(3));
  bytes.resize(32000);
  expect_round_trip(bytes);
}

TEST(Deflate, a_row_of_one_byte_shrinks_to_next_to_nothing) {
  EXPECT_LT(deflate(std::vector<std::uint8_t>(1 << 20, 255)).size(), 2000U);
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
