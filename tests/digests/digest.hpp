// SPDX-License-Identifier: Apache-2.0
// FNV-1a over the bits of tensors, each in the order of its axes; every NaN counts as the same one.
#pragma once
#include <cmath>
#include <cstdio>
#include <string>

#include "cases/tensor.hpp"

namespace heed::digests {

inline std::uint64_t hash(const cases::Tensor& t, std::uint64_t so_far) {
  cases::for_each(t.shape(), [&](auto b, auto h, auto i, auto d) {
    const std::uint64_t bits = std::isnan(t.at(b, h, i, d)) ? 0x7fc00000u : t.bits(b, h, i, d);
    const int bytes = t.dtype() == DType::f64 ? 8 : 4;
    for (int byte = 0; byte < bytes; ++byte) so_far = (so_far ^ (bits >> 8 * byte & 0xffu)) * 0x100000001b3u;
  });
  return so_far;
}

constexpr std::uint64_t hash_of_nothing = 0xcbf29ce484222325u;

inline std::string in_digits(std::uint64_t of) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(of));
  return text;
}

inline std::string digest(const cases::Tensor& t) { return in_digits(hash(t, hash_of_nothing)); }

}  // namespace heed::digests
