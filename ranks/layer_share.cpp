// SPDX-License-Identifier: Apache-2.0
// Which heads and outputs of a layer are a rank's.
#include "heed/distributed_layer.hpp"
#include "layer/config.hpp"
#include "ranks/pieces.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {

LayerShare share_of_layer(const LayerConfig& config, int rank, int ranks) {
  const LayerConfig c = layer::complete(config);
  const std::int64_t all = ranks, own = rank, kv_heads = *c.kv_heads, of_group = c.heads / kv_heads;
  if (all < 1 || own < 0 || own >= all)
    throw refusal(Error::value, "rank: ", own, " is none of ", all, " ranks");
  if (c.head_map == HeadMap::tiled && kv_heads > 1)
    throw refusal(
        Error::unsupported,
        "config.head_map: tiled, but heads that share keys must be neighbours; see interleave_heads()");
  if (all > c.model_dim)
    throw refusal(Error::value, "ranks: ", all, " are more than config.model_dim: ", c.model_dim);
  if (all > kv_heads && (all + kv_heads - 1) / kv_heads > of_group)
    throw refusal(Error::value, "ranks: ", all, " are more than config.heads: ", c.heads,
                  " can be divided among");
  LayerShare share;
  if (all <= kv_heads) {
    const Stretch of_kv = ranks::part(kv_heads, all, own);
    share = {of_kv.first * of_group, of_kv.length * of_group, of_kv.first, of_kv.length, 0, 0};
  } else {
    std::int64_t kv_head = 0;
    while (own >= ranks::part(all, kv_heads, kv_head).first + ranks::part(all, kv_heads, kv_head).length)
      ++kv_head;
    const Stretch sharing = ranks::part(all, kv_heads, kv_head);
    const Stretch heads = ranks::part(of_group, sharing.length, own - sharing.first);
    share = {kv_head * of_group + heads.first, heads.length, kv_head, 1, 0, 0};
  }
  const Stretch outputs = ranks::part(c.model_dim, all, own);
  share.first_output = outputs.first, share.outputs = outputs.length;
  return share;
}

}  // namespace HEED_NAMESPACE
