// SPDX-License-Identifier: Apache-2.0
// That all ranks mean the same call, before any of them computes: what each says of it is gathered, and
// everybody finds the same first difference.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "heed/group.hpp"

namespace heed::ranks {

class Agreement {
 public:
  // Which call it is about, which is said first, after the version of heed.
  enum class Of : std::uint8_t { any, attention, gradients, decode, layer };
  explicit Agreement(Of);

  // In the same order on every rank, of which some may stop early. Names are literals.
  void add(const char* name, std::int64_t value) { said_.push_back({name, value}); }
  void add_bits(const char* name, double value);
  void refuse(const std::string& why) { refusal_ = why; }  // what this rank cannot do

  // Throws Error::rank on all ranks where one refuses or says something else than the others: "rank 3: q.dim
  // is 64, and 32 on rank 0".
  void settle(Group&) const;

 private:
  struct Said {
    const char* name;
    std::int64_t value;
  };
  std::vector<Said> said_{};
  std::string refusal_{};
};

}  // namespace heed::ranks
