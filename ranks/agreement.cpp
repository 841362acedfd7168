// SPDX-License-Identifier: Apache-2.0
#include "ranks/agreement.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "heed/distributed.hpp"
#include "heed/version.hpp"
#include "ranks/gathered.hpp"
#include "ranks/group_call.hpp"
#include "ranks/meaning.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

constexpr const char* agreement_step = "what each rank was called with";

}  // namespace

Agreement::Agreement(Of of) {
  names_.reserve(Word::most), values_.reserve(Word::most);
  add("heed's version, which all ranks must share,",
      HEED_VERSION_MAJOR * 1000000 + HEED_VERSION_MINOR * 1000 + HEED_VERSION_PATCH);
  if (of == Of::any) return;  // it refuses, and knows no more
  add("which call this is (1: attention, 2: its gradients, 3: decode, 4: a layer)",
      static_cast<std::int64_t>(of));
}

void Agreement::add_bits(const char* name, double value) {
  add(name, std::bit_cast<std::int64_t>(value), ", in bits,");
}

void Agreement::tell(const GroupCall& call) {
  own_ = {number_of(spoken()), !refusal_.empty()};
  sums_.resize(static_cast<std::size_t>(call.group().size()));
  if (call.board().is_there()) return call.board().come_with({own_.of_values, own_.refuses});
  std::vector<std::span<std::byte>> into;
  for (Sum& sum : sums_) into.push_back(std::as_writable_bytes(std::span(&sum, 1)));
  under_way_ = call.group().gather(agreement_step, std::as_bytes(std::span(&own_, 1)), into);
}

void Agreement::settle(const GroupCall& call) {
  if (sums_.empty()) tell(call);
  if (call.board().is_there())
    read_board(call);
  else
    under_way_.wait();
  const auto agrees = [this](const Sum& sum) { return sum == sums_[0] && !sum.refuses; };
  if (std::all_of(sums_.begin(), sums_.end(), agrees)) return;
  std::vector<Word> words = gathered(call.group(), "what each rank was called with, in full", own_word());
  for (std::size_t r = 0; r < words.size(); ++r) {
    words[r].refusal[sizeof words[r].refusal - 1] = 0;
    if (words[r].refusal[0] != 0)
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r),
                    " refuses: ", static_cast<const char*>(words[r].refusal));
  }
  for (std::size_t n = 0; n < std::min(names_.size(), Word::most); ++n) check_same(n, words);
}

void Agreement::read_board(const GroupCall& call) {
  call.wait_for_all(agreement_step);
  for (std::size_t r = 0; r < sums_.size(); ++r) {
    const auto& [of_values, refuses] = call.board().note_of(static_cast<int>(r));
    sums_[r] = {of_values, refuses};
  }
}

Agreement::Word Agreement::own_word() const {
  Word own;
  own.count = static_cast<std::int64_t>(spoken().size());
  std::ranges::copy(spoken(), own.value);
  std::strncpy(own.refusal, refusal_.c_str(), sizeof own.refusal - 1);
  return own;
}

// That all ranks that say something of number n say the same.
void Agreement::check_same(std::size_t n, const std::vector<Word>& of_all) const {
  const auto says = [n](const Word& word) { return static_cast<std::size_t>(word.count) > n; };
  std::size_t first = 0;
  while (first < of_all.size() && !says(of_all[first])) ++first;
  for (std::size_t r = first + 1; r < of_all.size(); ++r)
    if (says(of_all[r]) && of_all[r].value[n] != of_all[first].value[n])
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r), ": ", names_[n].argument,
                    names_[n].form, " is ", of_all[r].value[n], ", and ", of_all[first].value[n], " on rank ",
                    static_cast<std::int64_t>(first));
}

}  // namespace heed::ranks

namespace HEED_NAMESPACE {

void refuse(Group& group, const std::string& why) {
  const ranks::GroupCall only(group);
  ranks::Agreement agreement(ranks::Agreement::Of::any);
  agreement.refuse(why.empty() ? "no reason is given" : why);
  agreement.settle(only);
  throw refusal(Error::rank, why);  // which settle() has done
}

}  // namespace HEED_NAMESPACE
