// SPDX-License-Identifier: Apache-2.0
// Decode over caches that are spread over ranks: of the states of chunks, each rank merges those of some
// heads.
#include <algorithm>
#include <cstring>

#include "api/plan.hpp"
#include "call/make_problem.hpp"
#include "heed/cache.hpp"
#include "heed/distributed.hpp"
#include "ranks/agreement.hpp"
#include "ranks/group_call.hpp"
#include "ranks/meaning.hpp"
#include "ranks/step_states.hpp"
#include "refusal/refusal.hpp"
#include "threads/pool.hpp"

namespace heed::ranks {
namespace {

constexpr std::int64_t chunk = Spread::chunk_tokens;

void check_rank(int rank, int ranks) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw refusal(Error::value, "rank: ", std::int64_t{rank}, " is none of ", std::int64_t{ranks}, " ranks");
}

// One rank's part of the call.
class SpreadCall {
 public:
  SpreadCall(Group& group, const View& q, const SpreadCache& spread, const Outputs& out,
             const Options& options)
      : group_(group), only_(group), options_(options), for_call_(options.threads, options.executor) {
    try {
      prepare(q, spread, out);
    } catch (const std::exception& e) {
      decode_.reset();
      agreement_.refuse(e.what());
    }
    describe(agreement_, q, spread);
    agreement_.tell(only_);
  }

  // What the others were called with travels while this rank computes its states: a step has no time to wait
  // for it.
  void run() {
    if (decode_) or_abort(group_, [this] { decode_->attend(states_->for_ranks()); });
    agreement_.settle(only_);
    or_abort(group_, [this] {
      states_->exchange();
      decode_->merge(states_->from_ranks(), states_->own_merged());
      states_->gather_merged();
    });
    if (decode_->finish(states_->merged())) api::check_none_needs_repair("attention", *problem_);
  }

 private:
  void prepare(const View& q, const SpreadCache& spread, const Outputs& out) {
    if (!spread.cache) throw refusal(Error::value, "cache: not given");
    if (out.weights || out.scores.into)
      throw refusal(Error::unsupported, out.weights ? "weights" : "scores.into",
                    ": asked for, but no rank has all keys to compute them");
    check_cache(spread, q);
    const Inputs inputs{.q = q, .cache = spread.cache, .sequences = spread.sequences};
    problem_.emplace(call::make_problem(inputs, out, options_, spread.lengths));
    call::hold_cache(*problem_);
    for (std::size_t b = 0; b < spread.lengths.size(); ++b) {
      const std::int64_t held = spread.cache->length(problem_->sequences[b].in_cache),
                         wanted = own_tokens(spread.lengths[b], group_.rank(), group_.size());
      if (held != wanted)
        throw refusal(Error::shape, "cache: sequence ", problem_->sequences[b].in_cache, " has ", held,
                      " tokens, and of ", spread.lengths[b], " this rank's are ", wanted);
    }
    decode_ = api::choose(Work::spread, *problem_).begin_spread(*problem_, {group_.rank(), group_.size()});
    states_.emplace(only_, *decode_);
  }

  static void check_cache(const SpreadCache& spread, const View& q) {
    const KvCacheConfig& config = spread.cache->config();
    if (std::ssize(spread.lengths) != q.shape.batch)
      throw refusal(Error::shape, "lengths: ", std::ssize(spread.lengths), " for q.batch: ", q.shape.batch);
    if (*config.page_size > chunk)
      throw refusal(Error::unsupported, "cache.page_size: ", *config.page_size, " is more than ", chunk,
                    ", the tokens of a chunk");
    if (config.window)
      throw refusal(Error::unsupported, "cache.window: given, but a part of a sequence has none");
    if (config.rotary)
      throw refusal(Error::unsupported,
                    "cache.rotary: given, but a part of a sequence does not know its positions");
  }

  void describe(Agreement& a, const View& q, const SpreadCache& spread) const {
    a.add("q.batch", q.shape.batch);
    a.add("q.heads", q.shape.heads);
    a.add("q.length", q.shape.length);
    a.add("q.dim", q.shape.dim);
    a.add("q.dtype", static_cast<std::int64_t>(q.dtype));
    a.add("cache.type", spread.cache ? static_cast<std::int64_t>(spread.cache->config().type) : 0);
    a.add("cache.kv_heads", spread.cache ? spread.cache->config().kv_heads : 0);
    a.add("cache.value_dim", spread.cache ? *spread.cache->config().value_dim : 0);
    a.add("lengths, as a number,", number_of(spread.lengths));
    describe_options(a, options_);
    a.add("the size of the states", decode_ ? states_->floats() : 0);
  }

  Group& group_;
  const GroupCall only_;
  const threads::StayAwake awake_{};
  const Options& options_;
  const threads::ForOneCall for_call_;
  std::optional<Problem> problem_{};
  std::unique_ptr<SpreadDecode> decode_{};  // null: refused
  Agreement agreement_{Agreement::Of::decode};
  std::optional<StepStates> states_{};
};

}  // namespace
}  // namespace heed::ranks

namespace HEED_NAMESPACE {

std::int64_t own_tokens(std::int64_t length, int rank, int ranks) {
  ranks::check_rank(rank, ranks);
  const std::int64_t round = ranks::chunk * ranks, rest = length % round - ranks::chunk * rank;
  return length / round * ranks::chunk + std::clamp<std::int64_t>(rest, 0, ranks::chunk);
}

void append_own(KvCache& cache, std::int64_t sequence, std::int64_t length, const View& k, const View& v,
                int rank, int ranks) {
  ranks::check_rank(rank, ranks);
  if (length < 0) throw refusal(Error::value, "length: ", length, " is negative");
  const std::int64_t before = cache.length(sequence), wanted = own_tokens(length, rank, ranks);
  if (before != wanted)
    throw refusal(Error::shape, "cache: sequence ", sequence, " has ", before, " tokens, and of ", length,
                  " this rank's are ", wanted);
  const std::int64_t bytes_k = static_cast<std::int64_t>(bytes_of(k.dtype)),
                     bytes_v = static_cast<std::int64_t>(bytes_of(v.dtype)),
                     count = std::min(k.shape.length, v.shape.length);
  const auto rows = [count](const View& x, std::int64_t first, std::int64_t end, std::int64_t bytes) {
    View part = x;
    part.data = static_cast<const std::byte*>(x.data) + (first > 0 ? first * x.stride.length * bytes : 0);
    part.shape.length =
        end - first + x.shape.length - count;  // a v of another length is the cache's to refuse
    return part;
  };
  try {
    for (std::int64_t first = 0; first < count;) {
      const std::int64_t at = length + first, end = std::min(count, first + ranks::chunk - at % ranks::chunk);
      if (at / ranks::chunk % ranks == rank) {
        const View keys = rows(k, first, end, bytes_k), values = rows(v, first, end, bytes_v);
        cache.append_to(sequence, keys, values);
      }
      first = end;
    }
  } catch (...) {  // all or nothing, as the cache itself
    cache.truncate(sequence, before);
    throw;
  }
}

void attention(Group& group, const View& q, const SpreadCache& cache, const Outputs& outputs,
               const Options& options) {
  ranks::SpreadCall(group, q, cache, outputs, options).run();
}

}  // namespace HEED_NAMESPACE
