// SPDX-License-Identifier: Apache-2.0
#include "ranks/share.hpp"

#include "ranks/rows.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

void check_refused(const Inputs& in) {
  if (in.cache) throw refusal(Error::unsupported, "inputs.cache: given, but ranks share keys as k and v");
  if (!in.query_starts.empty() || !in.key_starts.empty())
    throw refusal(Error::unsupported, "query_starts: given, but over ranks sequences are packed by Document");
  if (!in.query_counts.empty())
    throw refusal(Error::unsupported, "query_counts: given, but a share has no padding");
}

// That every piece of this rank's will fit all others, before any has travelled.
void check_keys(const Inputs& in) {
  const Shape &q = in.q.shape, &k = in.k.shape, &v = in.v.shape;
  if (in.k.dtype != in.q.dtype || in.v.dtype != in.q.dtype)
    throw refusal(Error::dtype, in.k.dtype != in.q.dtype ? "k" : "v",
                  ".dtype: ", name_of(in.k.dtype != in.q.dtype ? in.k.dtype : in.v.dtype),
                  " is not q.dtype: ", name_of(in.q.dtype));
  if (k.batch != q.batch || v.batch != q.batch || v.heads != k.heads || k.dim != q.dim)
    throw refusal(Error::shape, "k.shape: ", k, " and v.shape: ", v, " do not fit q.shape: ", q);
  Arguments keys;
  keys.add("k", in.k);
  keys.add("v", in.v);
  check_alone(keys.all());
  check_devices(keys.all(), "q.device", in.q.device);
}

}  // namespace

std::vector<HeadGroup> head_groups_for(const Group& group, const Split& split) {
  if (split.of_rank.size() != static_cast<std::size_t>(group.size()))
    throw refusal(Error::shape, "split: for ", static_cast<std::int64_t>(split.of_rank.size()),
                  " ranks, and the group has ", std::int64_t{group.size()});
  return head_groups(split);
}

const HeadGroup* own_group(const std::vector<HeadGroup>& groups, int rank) {
  for (const HeadGroup& group : groups)
    for (const int member : group.members)
      if (member == rank) return &group;
  return nullptr;
}

void check_rows(const char* name, const View& x, std::int64_t rows) {
  if (x.shape.length != rows)
    throw refusal(Error::shape, name, ".length: ", x.shape.length,
                  " is not the rows of this rank's share: ", rows);
}

void check_share(const Share& mine, const Split& split, const Inputs& in, const Options& options) {
  check_refused(in);
  const WholeCall& whole = split.whole;
  if (options.head_map == HeadMap::tiled && mine.kv_heads != whole.kv_heads)
    throw refusal(Error::unsupported,
                  "options.head_map: tiled, but heads are split; heads that share keys must be neighbours");
  if (mine.kv_heads == 0) return;
  check_rows("q", in.q, total(mine.queries));
  check_rows("k", in.k, total(mine.keys));
  check_rows("v", in.v, total(mine.keys));
  const std::int64_t heads = mine.kv_heads * (whole.heads / whole.kv_heads);
  if (in.k.shape.heads != mine.kv_heads || in.q.shape.heads != heads)
    throw refusal(Error::shape, "k.heads: ", in.k.shape.heads, " and q.heads: ", in.q.shape.heads,
                  " are not those of this rank's share: ", mine.kv_heads, " and ", heads);
  check_keys(in);
}

}  // namespace heed::ranks
