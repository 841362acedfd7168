// SPDX-License-Identifier: Apache-2.0
// FNV-1a over the bits of a tensor, in the order of its axes; every NaN counts as the same one.
#pragma once
#include <cmath>
#include <cstdio>
#include <string>

#include "cases/tensor.hpp"

namespace heed::digests {

inline std::string digest(const cases::Tensor& t) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  cases::for_each(t.shape(), [&](auto b, auto h, auto i, auto d) {
    const std::uint32_t bits = std::isnan(t.at(b, h, i, d)) ? 0x7fc00000u : t.bits(b, h, i, d);
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (bits >> 8 * byte & 0xffu)) * 0x100000001b3u;
  });
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace heed::digests
