// SPDX-License-Identifier: Apache-2.0
// See random_values.hpp.
#include "random_values.hpp"

namespace heed::tool {
namespace {

constexpr std::uint64_t golden_ratio =
    0x9e3779b97f4a7c15u;  // 2^64 / phi, odd: the counter visits every state

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace

void fill_random(Buffer& buffer, RandomSource source) {
  // Mixing the seed before adding the stream keeps (seed, stream + 1) away from (seed + 1, stream).
  const std::uint64_t start =
      mixed(mixed(source.seed + golden_ratio) + static_cast<std::uint64_t>(source.stream));
  const auto elements = static_cast<std::size_t>(buffer.shape().elements());
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint64_t bits = mixed(start + (i + 1) * golden_ratio);
    buffer.set(i, static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f);
  }
}

Buffer random_buffer(const Shape& shape, DType dtype, RandomSource source) {
  Buffer buffer(shape, dtype);
  fill_random(buffer, source);
  return buffer;
}

}  // namespace heed::tool
