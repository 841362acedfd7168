// SPDX-License-Identifier: Apache-2.0
#include "c/structs.hpp"

#include <algorithm>
#include <cstdint>

#include "heed/version.hpp"
#include "refusal/refusal.hpp"

namespace heed::c {
namespace {

// No struct will ever be as large: who has such a size has not set it, and nothing is to be read, or filled
// with zeros, so far from the struct.
constexpr std::size_t max_size = std::size_t{1} << 16;

}  // namespace

void check_size(const char* name, std::size_t size, const Known& known) {
  if (size < known.least || size > max_size)
    throw refusal(Error::value, name, ".size: ", size, " is not the struct's sizeof: ", known.size);
  for (const Field& field : known.fields)
    if (field.begin < size && size < field.end)
      throw refusal(Error::value, name, ".size: ", size, " ends inside the field of bytes ", field.begin,
                    " to ", field.end, "; the struct's sizeof is ", known.size);
}

void check_pointer(const char* name, const void* pointer) {
  if (!pointer) throw refusal(Error::value, name, ": NULL");
}

void read_known(const char* name, std::span<const std::byte> given, std::span<std::byte> known) {
  const std::size_t both = std::min(given.size(), known.size());
  if (std::ranges::any_of(given.subspan(both), [](std::byte byte) { return byte != std::byte{}; }))
    throw refusal(Error::unsupported, name, ": a field beyond the ", static_cast<std::int64_t>(known.size()),
                  " bytes that heed ", version(), " knows is not 0");
  std::ranges::copy(given.first(both), known.begin());
}

void write_known(std::span<const std::byte> known, std::span<std::byte> given) {
  const std::size_t both = std::min(given.size(), known.size());
  std::ranges::copy(known.first(both), given.begin());
  std::ranges::fill(given.subspan(both), std::byte{});
}

}  // namespace heed::c
