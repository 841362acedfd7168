// SPDX-License-Identifier: Apache-2.0
// A cache as named arrays, which is what its file holds (docs/cache.md lists them).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "heed/cache.hpp"
#include "heed/files.hpp"
#include "heed/rotary.hpp"

namespace heed::cache {

constexpr std::int64_t cache_format = 1;  // of the arrays, and of the packed layout inside the pages

Array integer_array(std::int64_t);                       // rank 0
Array integers_array(const std::vector<std::int64_t>&);  // rank 1
void put_config(Arrays&, const KvCacheConfig& complete_config);

// Of every array but the checksum itself: any one changed bit gives another.
std::uint64_t checksum_of(const Arrays&);
void put_checksum(Arrays&);

// The arrays of a file that is not believed yet. Each is taken out once; what is left over was unknown.
class CacheFields {
 public:
  CacheFields(std::string file, Arrays arrays);  // refuses another format, or a wrong checksum

  std::int64_t integer(const std::string& name);
  std::int64_t choice(const std::string& name, std::int64_t last);  // one of 0 ... last
  std::vector<std::int64_t> integers(const std::string& name);
  float real(const std::string& name);
  std::vector<float> reals(const std::string& name);
  Array bytes(const std::string& name) { return take(name, Element::u8, 2); }
  bool has(const std::string& name) const { return arrays_.contains(name); }
  void check_nothing_is_left() const;

  const std::string& file() const { return file_; }

 private:
  Array take(const std::string& name, Element, std::size_t rank);

  std::string file_;
  Arrays arrays_;
};

KvCacheConfig take_config(CacheFields&);  // checked and complete

// A rotary scaling as named arrays: config.rotary.scaling is its place in the variant, and each field is an
// array of its own, config.rotary.scaling.factor and so on.

void put_scaling(Arrays&, const RotaryScaling&);
std::optional<RotaryScaling> take_scaling(CacheFields&);  // none where the file has none; not yet checked

}  // namespace heed::cache
