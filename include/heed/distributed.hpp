// SPDX-License-Identifier: Apache-2.0
// Attention over the ranks of a group: each has a stretch of the sequence, some of the heads, or both. Keys
// and values travel in order, or lie in memory that all ranks map, and every row folds them as one process
// would: the results have its bits, whatever the number of ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "heed/export.hpp"
#include "heed/gradient.hpp"
#include "heed/group.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// Rows [first, first + length) of a sequence.
struct Stretch {
  std::int64_t first = 0, length = 0;
  friend constexpr bool operator==(const Stretch&, const Stretch&) = default;
};

// What one rank has of a call: its q and outputs are the rows of `queries`, one stretch after another, its k
// and v those of `keys`, and all of them the KV heads [first_kv_head, first_kv_head + kv_heads) with the
// query heads that read them.
struct Share {
  std::vector<Stretch> queries{}, keys{};
  std::int64_t first_kv_head = 0, kv_heads = 0;
};

// The extents of the whole call.
struct WholeCall {
  std::int64_t queries = 0, keys = 0, heads = 1, kv_heads = 1;
};

// Who has what. Every query and every key of every head is one rank's, and two ranks have the same KV heads
// or none in common.
struct Split {
  WholeCall whole{};
  std::vector<Share> of_rank{};
};

// Every rank has stretches of the sequence, as many from the front as from the back, so that all have as much
// to do under a causal mask; all heads. There are two of them, or up to eight of a long sequence, and where
// there are as many queries as keys a rank has the same of both.
HEED_API Split split_sequence(const WholeCall&, int ranks);
// Every rank has whole KV heads, and all of the sequence.
HEED_API Split split_heads(const WholeCall&, int ranks);
// ranks / head_groups ranks share a group of heads and split the sequence. Neighbours share.
HEED_API Split split_grid(const WholeCall&, int ranks, int head_groups);

// Called by all ranks of the group, each with its share of q, k, v and the outputs, and with the same options
// but for what has rows or heads: a bias and boolean masks have the rows of the share and all keys, slopes
// and sinks its heads. Masks without a matrix, documents, ALiBi and dropout speak of the whole call. Packed
// sequences are said by Document; weights, scores, caches and query_starts are refused.
//
// What differs between ranks, or is refused by one, is refused by all, by Error::rank, before anything is
// written. Memory O(share).
HEED_API void attention(Group&, const Split&, const Inputs&, const Outputs&, const Options& = {});

// This rank's part in the call that the others make, where it cannot make it: all of them refuse, with its
// reason. Throws that.
[[noreturn]] HEED_API void refuse(Group&, const std::string& why);

// The gradients of that call: Saved and Gradients have the rows and heads of the share too. Ranks that share
// heads exchange rows for heads, so that each has all rows of some KV heads, and back: every sum is one
// rank's, and the bits are those of attention_backward() in one process. Memory is that of the share as long
// as a rank has a KV head. The gradient by what all queries share, a sink or a bias of one row, is whole on
// every rank that passed it. Where heads share it too, one rank of the group differentiates all of them, and
// heads that a split has on different ranks are refused. A tree mask is refused.
//
// Of a bias or mask with one row, on ranks that all have one query, each is that query's own.
HEED_API void attention_backward(Group&, const Split&, const Inputs&, const Saved&, const Gradients&,
                                 const Options& = {});

// Sequences whose tokens are spread over the caches of all ranks: chunk n of 1024 tokens of each sequence is
// rank n % ranks', and follows those that rank has already. The cache has pages of at most 1024 tokens, and
// neither a window nor a rotary embedding of its own, since it knows nothing of its tokens' places.
struct SpreadCache {
  const KvCache* cache = nullptr;             // this rank's
  std::span<const std::int64_t> lengths{};    // of the whole sequences, one for each batch entry
  std::span<const std::int64_t> sequences{};  // their numbers in the cache; default: 0, 1, ...
};

// How many of the first `length` tokens of a sequence are this rank's.
HEED_API std::int64_t own_tokens(std::int64_t length, int rank, int ranks);
// Appends those of the tokens that are this rank's to its cache: k and v are those that follow the first
// `length` of the sequence, of which the cache has this rank's own, and the same on every rank.
HEED_API void append_own(KvCache&, std::int64_t sequence, std::int64_t length, const View& k, const View& v,
                         int rank, int ranks);

// Attention of a few queries, at most 32 rows for each KV head, over such caches: called by all ranks with
// the same q and options, and every rank has all results. Each computes the states of its own chunks; they
// are gathered and folded in order, so the bits are those of attention() over one cache with all tokens.
// Weights and scores are refused.
HEED_API void attention(Group&, const View& q, const SpreadCache&, const Outputs&, const Options& = {});

}  // namespace HEED_NAMESPACE
