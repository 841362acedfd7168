// SPDX-License-Identifier: Apache-2.0
// Attention over a long sequence, computed as two parts that never meet until the end: what a shared prompt,
// two threads or two machines would do. Each part keeps its log-sum-exp, and merge() joins them exactly as if
// they had been one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <heed/heed.hpp>
#include <limits>
#include <vector>

namespace {

constexpr std::int64_t queries = 4, keys = 1000, dim = 32;
constexpr heed::Shape query_shape{.length = queries, .dim = dim}, sum_shape{.length = queries, .dim = 1};

struct Part {
  std::vector<float> out = std::vector<float>(queries * dim), log_sum_exp = std::vector<float>(queries);
  heed::Outputs outputs() {
    return {.out = {out.data(), query_shape, bhsd(query_shape)},
            .log_sum_exp = heed::MutableView{log_sum_exp.data(), sum_shape, bhsd(sum_shape)}};
  }
};

std::vector<float> waves(std::int64_t rows, float step) {
  std::vector<float> x(static_cast<std::size_t>(rows * dim));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 2 * std::sin(step * static_cast<float>(i));
  return x;
}

// Attention over the keys [first, end): a slice is only a pointer and a length.
Part attend(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
            std::int64_t first, std::int64_t end) {
  Part part;
  const heed::Shape slice{.length = end - first, .dim = dim};
  heed::attention({.q = {q.data(), query_shape, bhsd(query_shape)},
                   .k = {k.data() + first * dim, slice, bhsd(slice)},
                   .v = {v.data() + first * dim, slice, bhsd(slice)}},
                  part.outputs());
  return part;
}

}  // namespace

int main() {
  const auto q = waves(queries, 0.7f), k = waves(keys, 1.3f), v = waves(keys, 0.9f);
  const Part whole = attend(q, k, v, 0, keys);
  std::printf("%8s %8s   %s\n", "left", "right", "largest difference from the whole");
  bool close = true;
  for (const std::int64_t split : {0, 1, 300, 999, 1000}) {
    Part left = attend(q, k, v, 0, split), right = attend(q, k, v, split, keys);
    heed::merge(left.outputs(), right.outputs());
    float largest = 0;
    for (std::size_t i = 0; i < left.out.size(); ++i)
      largest = std::max(largest, std::fabs(left.out[i] - whole.out[i]));
    // A few roundings of values no larger than 2.
    close = close && largest <= 16 * std::numeric_limits<float>::epsilon();
    std::printf("%8d %8d   %.1e\n", static_cast<int>(split), static_cast<int>(keys - split), largest);
  }
  return close ? 0 : 1;
}
