// SPDX-License-Identifier: Apache-2.0
#include "ranks/agreement.hpp"

#include <bit>
#include <cstring>

#include "heed/distributed.hpp"
#include "heed/version.hpp"
#include "ranks/group_call.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

// One rank's word. Of a fixed size whatever the versions of heed, so that these can be compared too.
struct Word {
  static constexpr std::size_t most = 64;
  std::int64_t count = 0;  // of values; a rank may have less to say than others, but not something else
  std::int64_t value[most] = {};
  char refusal[512] = {};  // empty: none
};

// That all ranks that say something of number n say the same.
void check_same(const std::vector<Word>& all, std::size_t n, const char* name) {
  const auto says = [n](const Word& word) { return static_cast<std::size_t>(word.count) > n; };
  std::size_t first = 0;
  while (first < all.size() && !says(all[first])) ++first;
  for (std::size_t r = first + 1; r < all.size(); ++r)
    if (says(all[r]) && all[r].value[n] != all[first].value[n])
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r), ": ", name, " is ", all[r].value[n],
                    ", and ", all[first].value[n], " on rank ", static_cast<std::int64_t>(first));
}

}  // namespace

Agreement::Agreement(Of of) {
  add("heed's version, which all ranks must share,",
      HEED_VERSION_MAJOR * 1000000 + HEED_VERSION_MINOR * 1000 + HEED_VERSION_PATCH);
  if (of == Of::any) return;  // it refuses, and knows no more
  add("which call this is (1: attention, 2: its gradients, 3: decode, 4: a layer)",
      static_cast<std::int64_t>(of));
}

void Agreement::add_bits(const char* name, double value) { add(name, std::bit_cast<std::int64_t>(value)); }

void Agreement::settle(Group& group) const {
  Word own;
  const std::size_t count = std::min(said_.size(), Word::most);
  own.count = static_cast<std::int64_t>(count);
  for (std::size_t n = 0; n < count; ++n) own.value[n] = said_[n].value;
  std::strncpy(own.refusal, refusal_.c_str(), sizeof own.refusal - 1);
  std::vector<Word> all(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> into;
  for (Word& word : all) into.push_back(std::as_writable_bytes(std::span(&word, 1)));
  group.gather("what each rank was called with", std::as_bytes(std::span(&own, 1)), into).wait();
  for (std::size_t r = 0; r < all.size(); ++r) {
    all[r].refusal[sizeof own.refusal - 1] = 0;
    if (all[r].refusal[0] != 0)
      throw refusal(Error::rank, "rank ", static_cast<std::int64_t>(r),
                    " refuses: ", static_cast<const char*>(all[r].refusal));
  }
  for (std::size_t n = 0; n < count; ++n) check_same(all, n, said_[n].name);
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
