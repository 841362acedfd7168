// SPDX-License-Identifier: Apache-2.0
// That all ranks mean the same call, before any of them computes: what each says of it is gathered, and
// everybody finds the same first difference.
#pragma once
#include <algorithm>
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
  // What is added from here on is only named: the others say it, and this rank finds their differences too.
  void say_no_more() { spoken_ = std::min(spoken_, said_.size()); }
  void refuse(const std::string& why) { refusal_ = why; }  // what this rank cannot do

  // Begins to tell the others and to hear from them, so that something may be computed meanwhile.
  void tell(Group&);
  // Throws Error::rank on all ranks where one refuses or says something else than the others: "rank 3: q.dim
  // is 64, and 32 on rank 0". Tells them first, where that has not begun.
  void settle(Group&);

 private:
  struct Said {
    const char* name;
    std::int64_t value;
  };
  // One rank's word. Of a fixed size whatever the versions of heed, so that these can be compared too.
  struct Word {
    static constexpr std::size_t most = 64;
    std::int64_t count = 0;  // of values; a rank may have less to say than others, but not something else
    std::int64_t value[most] = {};
    char refusal[512] = {};  // empty: none
  };
  void check_same(std::size_t n) const;

  std::vector<Said> said_{};
  std::size_t spoken_ = Word::most;  // of them, at most
  std::string refusal_{};
  Word own_{};
  std::vector<Word> all_{};  // empty: nobody has been told
  Group::Pending under_way_{};
};

}  // namespace heed::ranks
