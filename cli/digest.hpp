// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits: a fingerprint by which two machines compare their answers.
#pragma once
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heed::tool {

inline std::string digest_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  return fmt::format("fnv1a64:{:016x}", hash);
}

}  // namespace heed::tool
