// SPDX-License-Identifier: Apache-2.0
// That all ranks mean the same call, before any of them computes. What each says of it is gathered as one
// number; where these differ the words are too, and everybody finds the same first difference.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ranks/group_call.hpp"

namespace heed::ranks {

class Agreement {
 public:
  // Which call it is about, which is said first, after the version of heed.
  enum class Of : std::uint8_t { any, attention, gradients, decode, layer };
  explicit Agreement(Of);
  Agreement(const Agreement&) = delete;  // what it tells lies in it
  Agreement& operator=(const Agreement&) = delete;

  // In the same order on every rank, of which some may stop early. Names are literals; `form` says what a
  // number stands for that is not the argument itself.
  void add(const char* name, std::int64_t value, const char* form = "") {
    names_.push_back({name, form}), values_.push_back(value);
  }
  void add_bits(const char* name, double value);
  // What is added from here on is only named: the others say it, and this rank finds their differences too.
  void say_no_more() { spoken_ = std::min(spoken_, values_.size()); }
  void refuse(const std::string& why) { refusal_ = why; }  // what this rank cannot do

  // Begins to tell the others and to hear from them, so that something may be computed meanwhile.
  void tell(const GroupCall&);
  // Throws Error::rank on all ranks where one refuses or says something else than the others: "rank 3: q.dim
  // is 64, and 32 on rank 0". Tells them first, where that has not begun.
  void settle(const GroupCall&);

 private:
  // All that a rank says, as one number.
  struct Sum {
    std::int64_t of_values = 0, refuses = 0;
    friend bool operator==(const Sum&, const Sum&) = default;
  };
  // One rank's word. Of a fixed size whatever the versions of heed, so that these can be compared too.
  struct Word {
    static constexpr std::size_t most = 64;
    std::int64_t count = 0;  // of values; a rank may have less to say than others, but not something else
    std::int64_t value[most] = {};
    char refusal[512] = {};  // empty: none
  };
  std::span<const std::int64_t> spoken() const {
    return std::span(values_).first(std::min(values_.size(), spoken_));
  }
  Word own_word() const;
  void read_board(const GroupCall&);
  void check_same(std::size_t n, const std::vector<Word>& of_all) const;

  struct Name {
    const char *argument, *form;
  };
  std::vector<Name> names_{};
  std::vector<std::int64_t> values_{};
  std::size_t spoken_ = Word::most;  // of them, at most
  std::string refusal_{};
  Sum own_{};
  std::vector<Sum> sums_{};     // of all ranks; empty: nobody has been told
  Group::Pending under_way_{};  // unless the sums are on the board
};

}  // namespace heed::ranks
