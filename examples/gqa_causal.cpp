// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention is multi-head attention in which several query heads read the same keys and values.
// Here eight query heads share two KV heads; repeating those two until there are eight gives the same bits,
// at four times the memory.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <heed/heed.hpp>
#include <random>
#include <vector>

namespace {

constexpr heed::Shape queries{.batch = 1, .heads = 8, .length = 6, .dim = 16};
constexpr heed::Shape grouped{.batch = 1, .heads = 2, .length = 6, .dim = 16};

std::vector<float> random_tensor(heed::Shape shape, unsigned seed) {
  std::mt19937 bits(seed);
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (float& x : values) x = static_cast<float>(bits()) * 0x1p-31f - 1;
  return values;
}

// Every KV head written out once for each of the four query heads that read it.
std::vector<float> repeat_heads(const std::vector<float>& kv) {
  const auto head = grouped.length * grouped.dim;
  std::vector<float> repeated;
  for (std::int64_t h = 0; h < queries.heads; ++h) {
    const auto first = kv.begin() + h / (queries.heads / grouped.heads) * head;
    repeated.insert(repeated.end(), first, first + head);
  }
  return repeated;
}

std::vector<float> attend(const std::vector<float>& q, const std::vector<float>& k,
                          const std::vector<float>& v, heed::Shape kv) {
  std::vector<float> out(q.size());
  heed::attention({.q = {q, queries}, .k = {k, kv}, .v = {v, kv}}, {.out = {out, queries}},
                  {.masks = {heed::Causal{}}});
  return out;
}

}  // namespace

int main() {
  const auto q = random_tensor(queries, 1), k = random_tensor(grouped, 2), v = random_tensor(grouped, 3);
  const auto shared = attend(q, k, v, grouped);
  const auto repeated = attend(q, repeat_heads(k), repeat_heads(v), queries);

  std::printf("%-22s %8s %20s\n", "", "KV heads", "KV bytes per token");
  const auto row = [](const char* name, std::int64_t kv_heads) {
    const auto bytes = 2 * kv_heads * grouped.dim * static_cast<std::int64_t>(sizeof(float));
    std::printf("%-22s %8d %20d\n", name, static_cast<int>(kv_heads), static_cast<int>(bytes));
  };
  row("multi-head (MHA)", queries.heads);
  row("grouped-query (GQA)", grouped.heads);
  row("multi-query (MQA)", 1);

  const bool same = std::memcmp(shared.data(), repeated.data(), shared.size() * sizeof(float)) == 0;
  std::printf("\nshared and repeated heads give %s\n", same ? "the same bits" : "DIFFERENT BITS");
  return same ? 0 : 1;
}
