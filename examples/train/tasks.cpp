// SPDX-License-Identifier: Apache-2.0
#include "tasks.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "random.hpp"

namespace train {
namespace {

constexpr std::uint64_t of_tests = 0x7e57;

std::uint64_t mixed(std::uint64_t seed, std::int64_t step) {
  return seed * 1000003 + static_cast<std::uint64_t>(step) + 1;
}

void shuffle(std::vector<std::int32_t>& x, Random& random) {
  for (std::size_t n = x.size(); n > 1; --n)
    std::swap(x[n - 1], x[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)))]);
}

}  // namespace

Batch Recall::batch(std::uint64_t seed, std::int64_t step) const {
  Random random(mixed(seed, step));
  Batch b{rows, 2 * pairs};
  std::vector<std::int32_t> all(keys), order(pairs);
  std::iota(all.begin(), all.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  const auto put = [&](std::int32_t key, std::int32_t beside, std::int32_t target) {
    b.tokens.push_back(key);
    b.beside.push_back(beside);
    b.targets.push_back(target);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    shuffle(all, random);
    shuffle(order, random);
    std::vector<std::int32_t> value;
    for (std::size_t n = 0; n < order.size(); ++n) {
      value.push_back(static_cast<std::int32_t>(keys + random.below(values)));
      put(all[n], value[n], -1);
    }
    for (const std::int32_t asked : order) {
      const auto n = static_cast<std::size_t>(asked);
      put(all[n], -1, value[n]);
    }
  }
  return b;
}

Batch Recall::test_batch(std::int64_t n) const { return batch(of_tests, n); }

Text::Text(const std::string& text) {
  const std::set<char> found(text.begin(), text.end());
  letters_.assign(found.begin(), found.end());
  for (const char letter : text) tokens_.push_back(static_cast<std::int32_t>(letters_.find(letter)));
  trained_ = static_cast<std::int64_t>(tokens_.size()) * 9 / 10;
}

void Text::put(std::int64_t first, Batch& b) const {
  const auto begin = tokens_.begin() + first;
  b.tokens.insert(b.tokens.end(), begin, begin + length);
  b.targets.insert(b.targets.end(), begin + 1, begin + length + 1);
}

Batch Text::batch(std::uint64_t seed, std::int64_t step) const {
  Random random(mixed(seed, step));
  Batch b{rows, length};
  for (std::int64_t row = 0; row < rows; ++row) put(random.below(trained_ - length), b);
  return b;
}

Batch Text::test_batch(std::int64_t n) const {
  Random random(mixed(of_tests, n));
  Batch b{rows, length};
  const std::int64_t last = static_cast<std::int64_t>(tokens_.size()) - length - 1;
  for (std::int64_t row = 0; row < rows; ++row) put(trained_ + random.below(last - trained_), b);
  return b;
}

}  // namespace train
