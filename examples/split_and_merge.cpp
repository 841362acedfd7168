// SPDX-License-Identifier: Apache-2.0
// Attention over a long sequence, computed as two parts that never meet until the end: what a shared prompt,
// two threads or two machines would do. Each part keeps its log-sum-exp, by which merge() joins them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <heed/heed.hpp>
#include <vector>

namespace {

constexpr std::int64_t queries = 4, keys = 1000, dim = 32;
constexpr heed::Shape query_shape{.length = queries, .dim = dim}, sum_shape{.length = queries, .dim = 1};

struct Part {
  std::vector<float> out = std::vector<float>(queries * dim), log_sum_exp = std::vector<float>(queries);
  heed::Outputs outputs() { return {.out = {out, query_shape}, .log_sum_exp = {log_sum_exp, sum_shape}}; }
};

struct Tensors {
  std::vector<float> q, k, v;
};

std::vector<float> waves(std::int64_t rows, float step) {
  std::vector<float> x(static_cast<std::size_t>(rows * dim));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1 + 2 * std::sin(step * static_cast<float>(i));
  return x;
}

// Attention over the keys [first, end): a slice is only a pointer and a length.
heed::Inputs slice(const Tensors& all, std::int64_t first, std::int64_t end) {
  const heed::Shape keys_shape{.length = end - first, .dim = dim};
  return {.q = {all.q, query_shape},
          .k = {all.k.data() + first * dim, keys_shape},
          .v = {all.v.data() + first * dim, keys_shape}};
}

Part attend(const heed::Inputs& inputs) {
  Part part;
  heed::attention(inputs, part.outputs());
  return part;
}

}  // namespace

int main() {
  const Tensors all{waves(queries, 0.7f), waves(keys, 1.3f), waves(keys, 0.9f)};
  const heed::Inputs everything = slice(all, 0, keys);
  const Part whole = attend(everything);
  std::printf("%8s %8s   %s\n", "left", "right", "largest difference from the whole");
  std::int64_t wrong = 0;
  for (const std::int64_t split : {0, 1, 300, 999, 1000}) {
    Part left = attend(slice(all, 0, split)), right = attend(slice(all, split, keys));
    heed::merge(left.outputs(), right.outputs());
    float largest = 0;
    for (std::size_t i = 0; i < left.out.size(); ++i)
      largest = std::max(largest, std::fabs(left.out[i] - whole.out[i]));
    std::printf("%8d %8d   %.1e\n", static_cast<int>(split), static_cast<int>(keys - split), largest);
    wrong += heed::check(everything, left.outputs()).beyond_bound;
  }
  std::printf("\nelements beyond the error bound of the whole: %d\n", static_cast<int>(wrong));
  return wrong == 0 ? 0 : 1;
}
