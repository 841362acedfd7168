// SPDX-License-Identifier: Apache-2.0
#include "ranks/agreement.hpp"

#include <bit>
#include <cstring>

#include "heed/distributed.hpp"
#include "heed/version.hpp"
#include "ranks/group_call.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
Agreement::Agreement(Of of) {
  add("heed's version, which all ranks must share,",
      HEED_VERSION_MAJOR * 1000000 + HEED_VERSION_MINOR * 1000 + HEED_VERSION_PATCH);
  if (of == Of::any) return;  // it refuses, and knows no more
  add("which call this is (1: attention, 2: its gradients, 3: decode, 4: a layer)",
      static_cast<std::int64_t>(of));
}

void Agreement::add_bits(const char* name, double value) { add(name, std::bit_cast<std::int64_t>(value)); }

void Agreement::tell(Group& group) {
  const std::size_t count = std::min(said_.size(), spoken_);
  own_.count = static_cast<std::int64_t>(count);
  for (std::size_t n = 0; n < count; ++n) own_.value[n] = said_[n].value;
  std::strncpy(own_.refusal, refusal_.c_str(), sizeof own_.refusal - 1);
  all_.resize(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> into;
  for (Word& word : all_) into.push_back(std::as_writable_bytes(std::span(&word, 1)));
  under_way_ = group.gather("what each rank was called with", std::as_bytes(std::span(&own_, 1)), into);
}

void Agreement::settle(Group& group) {
  if (all_.empty()) tell(group);
  under_way_.wait();
  for (std::size_t r = 0; r < all_.size(); ++r) {
    all_[r].refusal[sizeof own_.refusal - 1] = 0;
    if (all_[r].refusal[0] != 0)
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r),
                    " refuses: ", static_cast<const char*>(all_[r].refusal));
  }
  for (std::size_t n = 0; n < std::min(said_.size(), Word::most); ++n) check_same(n);
}

// That all ranks that say something of number n say the same.
void Agreement::check_same(std::size_t n) const {
  const auto says = [n](const Word& word) { return static_cast<std::size_t>(word.count) > n; };
  std::size_t first = 0;
  while (first < all_.size() && !says(all_[first])) ++first;
  for (std::size_t r = first + 1; r < all_.size(); ++r)
    if (says(all_[r]) && all_[r].value[n] != all_[first].value[n])
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r), ": ", said_[n].name, " is ",
                    all_[r].value[n], ", and ", all_[first].value[n], " on rank ",
                    static_cast<std::int64_t>(first));
}

}  // namespace heed::ranks

namespace heed::inline v0_2 {

void refuse(Group& group, const std::string& why) {
  const ranks::GroupCall only(group);
  ranks::Agreement agreement(ranks::Agreement::Of::any);
  agreement.refuse(why.empty() ? "no reason is given" : why);
  agreement.settle(group);
  throw refusal(Error::rank, why);  // which settle() has done
}

}  // namespace heed::inline v0_2
