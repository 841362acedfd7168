// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., 2011): a counter-based generator, so that the random word for a given weight
// is the same for every tiling, thread count, device and rank (S7). Plain words, inlined always: kernels of
// every instruction set use it, and the linker must not share what one of them compiled.
#pragma once
#include <cstdint>
#include <type_traits>

namespace heed::softmax {

struct Words {
  std::uint32_t word[4];
  friend constexpr bool operator==(const Words&, const Words&) = default;
};

// Both halves of a product. On a GPU apart, which become one instruction: nvcc makes three of a product of 64
// bits whose factor is beyond 2^31.
struct Product {
  std::uint32_t high, low;
};
[[gnu::always_inline]] constexpr Product wide_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) return {__umulhi(a, b), a * b};
#endif
  const std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

[[gnu::always_inline]] constexpr Words philox(Words counter, std::uint64_t key) {
  auto& [x0, x1, x2, x3] = counter.word;
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const Product even = wide_product(0xD2511F53u, x0), odd = wide_product(0xCD9E8D57u, x2);
    x0 = odd.high ^ x1 ^ k0, x1 = odd.low;
    x2 = even.high ^ x3 ^ k1, x3 = even.low;
  }
  return counter;
}

// The words that decide whether the weights of keys 4n ... 4n + 3 drop; head counts batch * heads + h.
[[gnu::always_inline]] constexpr Words dropout_words(std::uint64_t seed, std::int64_t head,
                                                     std::int64_t query, std::int64_t n) {
  return philox(
      {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(head), 0},
      seed);
}

// A weight drops when its word lies below this: drop_probability * 2^32, rounded down.
constexpr std::uint64_t dropout_threshold(double drop_probability) {
  return static_cast<std::uint64_t>(drop_probability * 4294967296.0);
}

// What the weights that stay are multiplied with.
constexpr float keep_scale(double drop_probability) {
  return static_cast<float>(1.0 / (1.0 - drop_probability));
}

}  // namespace heed::softmax
