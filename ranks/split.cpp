// SPDX-License-Identifier: Apache-2.0
// Who has what of a call over ranks.
#include <algorithm>

#include "heed/distributed.hpp"
#include "ranks/pieces.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {
namespace {

void check_whole(const WholeCall& whole, int ranks) {
  if (ranks < 1) throw refusal(Error::value, "ranks: ", std::int64_t{ranks}, " is less than 1");
  if (whole.queries < 0 || whole.keys < 0)
    throw refusal(Error::shape, "whole: a negative number of queries or keys");
  if (whole.heads < 0 || whole.kv_heads < 1 || whole.heads % whole.kv_heads != 0)
    throw refusal(Error::shape, "whole.kv_heads: ", whole.kv_heads,
                  " does not divide whole.heads: ", whole.heads);
}

// What rank r of so many has of a sequence: of every pair of rounds the r-th stretch from the front, and the
// r-th from the back, so that under a causal mask all have as much to do. Who has less to do with the chunks
// of one round has more with those of the next: two rounds of 16 chunks are what the chunks ahead make up for
// (attention.cpp), longer ones are cut, unless into stretches of less than 512 rows, which share too little
// of the work of reading keys.
std::vector<Stretch> dealt(std::int64_t length, std::int64_t ranks, std::int64_t r) {
  const std::int64_t wanted = (length + 16 * heed::ranks::chunk_keys - 1) / (16 * heed::ranks::chunk_keys),
                     possible = length / (2 * ranks * 512),
                     pairs = std::clamp<std::int64_t>(std::min(wanted, possible), 1, 4);
  std::vector<Stretch> stretches;
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    for (const std::int64_t n : {r, 2 * ranks - 1 - r})
      stretches.push_back(heed::ranks::part(length, 2 * ranks * pairs, 2 * ranks * pair + n));
  return stretches;
}

}  // namespace

Split split_grid(const WholeCall& whole, int ranks, int head_groups) {
  check_whole(whole, ranks);
  if (head_groups < 1 || ranks % head_groups != 0)
    throw refusal(Error::value, "head_groups: ", std::int64_t{head_groups},
                  " does not divide ranks: ", std::int64_t{ranks});
  Split split{whole, {}};
  const std::int64_t together = ranks / head_groups;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Stretch heads = heed::ranks::part(whole.kv_heads, head_groups, r / together);
    Share share{.first_kv_head = heads.first, .kv_heads = heads.length};
    if (heads.length > 0) {
      share.queries = dealt(whole.queries, together, r % together);
      share.keys = dealt(whole.keys, together, r % together);
    }
    split.of_rank.push_back(std::move(share));
  }
  return split;
}

Split split_sequence(const WholeCall& whole, int ranks) { return split_grid(whole, ranks, 1); }
Split split_heads(const WholeCall& whole, int ranks) { return split_grid(whole, ranks, ranks); }

}  // namespace HEED_NAMESPACE

namespace heed::ranks {
namespace {

std::string of_rank(std::size_t rank) { return "split.of_rank[" + std::to_string(rank) + "]"; }

void check_stretches(const std::string& name, const std::vector<Stretch>& stretches, std::int64_t length) {
  for (const auto& [first, count] : stretches)
    if (first < 0 || count < 0 || first > length - count)
      throw refusal(Error::shape, name, ": [", first, ", ", first, " + ", count, ") is not within ", length);
}

// That the stretches of those ranks are [0, length), each once.
template <class Of>
void check_cover(const Split& split, const std::vector<int>& members, const char* name, std::int64_t length,
                 Of of) {
  std::vector<Stretch> all;
  for (const int r : members)
    for (const Stretch& s : of(split.of_rank[static_cast<std::size_t>(r)]))
      if (s.length > 0) all.push_back(s);
  std::ranges::sort(all, {}, &Stretch::first);
  std::int64_t end = 0;
  for (const Stretch& s : all) {
    if (s.first != end)
      throw refusal(Error::shape, "split: ", s.first < end ? "two ranks have " : "nobody has ", name, " ",
                    std::min(s.first, end), " of one group of heads");
    end = s.first + s.length;
  }
  if (end != length)
    throw refusal(Error::shape, "split: nobody has ", name, " ", end, " of one group of heads");
}

// The chunks of a group, whose members have all keys.
void cut_keys(const Split& split, HeadGroup& group) {
  group.chunks.resize(static_cast<std::size_t>((split.whole.keys + chunk_keys - 1) / chunk_keys));
  for (const int r : group.members) {
    std::int64_t row = 0;
    for (const auto& [first, length] : split.of_rank[static_cast<std::size_t>(r)].keys)
      for (std::int64_t at = first; at < first + length;) {
        const std::int64_t count = std::min(first + length, (at / chunk_keys + 1) * chunk_keys) - at;
        group.chunks[static_cast<std::size_t>(at / chunk_keys)].push_back({r, at, count, row});
        at += count, row += count;
      }
  }
  for (std::vector<Piece>& pieces : group.chunks) std::ranges::sort(pieces, {}, &Piece::first);
}

}  // namespace

std::vector<HeadGroup> head_groups(const Split& split) {
  const WholeCall& whole = split.whole;
  check_whole(whole, 1);
  std::vector<HeadGroup> groups;
  for (std::size_t r = 0; r < split.of_rank.size(); ++r) {
    const Share& share = split.of_rank[r];
    check_stretches(of_rank(r) + ".queries", share.queries, whole.queries);
    check_stretches(of_rank(r) + ".keys", share.keys, whole.keys);
    check_stretches(of_rank(r) + ".kv_heads", {{share.first_kv_head, share.kv_heads}}, whole.kv_heads);
    if (share.kv_heads == 0) continue;
    const auto same = std::ranges::find_if(groups, [&](const HeadGroup& g) {
      return g.first_kv_head == share.first_kv_head && g.kv_heads == share.kv_heads;
    });
    if (same != groups.end())
      same->members.push_back(static_cast<int>(r));
    else
      groups.push_back({share.first_kv_head, share.kv_heads, {static_cast<int>(r)}, {}});
  }
  std::ranges::sort(groups, {}, &HeadGroup::first_kv_head);
  std::int64_t end = 0;
  for (HeadGroup& group : groups) {
    if (group.first_kv_head != end)
      throw refusal(Error::shape,
                    "split: ranks have neither the same KV heads nor none in common, or nobody has KV head ",
                    std::min(end, group.first_kv_head));
    end += group.kv_heads;
    check_cover(split, group.members, "query", whole.queries, [](const Share& s) { return s.queries; });
    check_cover(split, group.members, "key", whole.keys, [](const Share& s) { return s.keys; });
    cut_keys(split, group);
  }
  if (end != whole.kv_heads) throw refusal(Error::shape, "split: nobody has KV head ", end);
  return groups;
}

}  // namespace heed::ranks
