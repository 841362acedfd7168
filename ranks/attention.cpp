// SPDX-License-Identifier: Apache-2.0
// Attention over ranks: together in memory that all of them map, or every rank streams the keys of its heads,
// its own and those it is sent, in order. While a chunk is computed the next ones travel.
#include <algorithm>
#include <cstring>
#include <optional>

#include "heed/distributed.hpp"
#include "heed/stream.hpp"
#include "ranks/agreement.hpp"
#include "ranks/group_call.hpp"
#include "ranks/meaning.hpp"
#include "ranks/moving_executor.hpp"
#include "ranks/pieces.hpp"
#include "ranks/rows.hpp"
#include "ranks/share.hpp"
#include "ranks/together.hpp"
#include "refusal/refusal.hpp"
#include "threads/memory.hpp"
#include "threads/pool.hpp"

namespace heed::ranks {
namespace {

// One rank's part of the call.
class RankCall {
 public:
  RankCall(Group& group, const Split& split, const Inputs& in, const Outputs& out, const Options& options)
      : group_(group), only_(group), split_(split), in_(in), out_(out), options_(options) {
    Agreement agreement(Agreement::Of::attention);
    try {
      prepare();
    } catch (const std::exception& e) {  // also where memory ends
      agreement.refuse(e.what());
    }
    describe(agreement, group, split, own_ ? &in : nullptr, options);
    agreement.settle(only_);
  }

  void run() {
    bool is_done = false;
    or_abort(group_, [&] {
      is_done = attend_together(group_, only_, {split_, in_, out_, options_, stream_kernel_});
    });
    if (is_done) return;
    if (only_.share_memory()) begin_all_streams();
    or_abort(group_, [this] { stream_keys(); });
    finish();
  }

 private:
  // Chunks travel ahead of what is computed, as many as this rank has room for: under a causal mask not all
  // have the same to do with every chunk, only with all of them.
  void stream_keys() {
    const std::size_t chunks = groups_.empty() ? 0 : groups_[0].chunks.size(), ahead = slots_.size() - 1;
    for (std::size_t n = 0; n < chunks + ahead; ++n) {
      if (n < chunks) send_off(n);
      if (own_ && n >= ahead) attend(n - ahead);
    }
    for (Slot& slot : slots_) slot.wait_until_free();
  }

  // All stretches, also where rows of one are missing.
  void finish() {
    std::optional<Error> missing;
    for (std::size_t n = 0; n < streams_.size(); ++n) try {
        streams_[n].finish();
      } catch (const Error& e) {
        const auto& [first, length] = share().queries[n];
        if (!missing)
          missing = refusal(e.code, "queries [", first, ", ", first, " + ", length, "): ", e.what());
      }
    if (missing) throw *missing;
  }

  // The rows of one stretch of queries, as a part of the whole call.
  struct Part {
    StreamInputs inputs;
    Outputs outputs;
    Options options;
  };

  // Room for a chunk that travels, or is there.
  struct Slot {
    std::byte* keys = nullptr;
    std::vector<Group::Pending> arriving{}, leaving{};

    void wait_for_keys() {
      for (Group::Pending& piece : arriving) piece.wait();
      arriving.clear();
    }
    void wait_until_free() {
      wait_for_keys();
      for (Group::Pending& piece : leaving) piece.wait();
      leaving.clear();
    }
    void move() {
      for (auto* pieces : {&arriving, &leaving})
        for (Group::Pending& piece : *pieces) piece.is_done();
    }
  };

  const Share& share() const { return split_.of_rank[static_cast<std::size_t>(group_.rank())]; }

  void prepare() {
    groups_ = head_groups_for(group_, split_);
    own_ = own_group(groups_, group_.rank());
    check_share(share(), split_, in_, options_);
    if (!own_) return;
    check_rows("out", View(out_.out), total(share().queries));
    cut_rows(split_.whole.heads / split_.whole.kv_heads);
    if (only_.share_memory())
      check_kernels();
    else
      begin_streams();
  }

  // That all parts can be streamed, for which there is no memory yet.
  void check_kernels() {
    for (const auto& [inputs, outputs, options] : parts_) {
      const std::vector<Verdict> verdicts = plan(inputs, outputs, options);
      const auto taken = std::ranges::find(verdicts, Verdict::taken, &Verdict::choice);
      if (taken != verdicts.end())
        stream_kernel_ = taken->kernel;
      else
        KeyStream(inputs, outputs, options);  // throws, and says why
    }
  }

  // As many as hold the keys that this rank has itself, and eight in any case: with less ahead, ranks that
  // have less to do with a chunk than others would wait for them. And room for one more.
  void make_slots() {
    const Shape &k = in_.k.shape, &v = in_.v.shape;
    key_bytes_ = k.batch * k.heads * k.dim * element_bytes(in_.k);
    value_bytes_ = v.batch * v.heads * v.dim * element_bytes(in_.v);
    const auto chunks_of = [](std::int64_t keys) { return (keys + chunk_keys - 1) / chunk_keys; };
    const std::int64_t all = chunks_of(split_.whole.keys), own = chunks_of(total(share().keys)),
                       count = std::clamp<std::int64_t>(all, 1, std::max<std::int64_t>(8, own)),
                       bytes = std::min(chunk_keys, split_.whole.keys) * (key_bytes_ + value_bytes_);
    memory_ = threads::take_memory(static_cast<std::size_t>(((count + 1) * bytes + 3) / 4));
    chunk_ = reinterpret_cast<std::byte*>(memory_.get());
    slots_.resize(static_cast<std::size_t>(count));
    for (std::int64_t n = 0; n < count; ++n)
      slots_[static_cast<std::size_t>(n)].keys = chunk_ + (n + 1) * bytes;
  }

  void cut_rows(std::int64_t of_group) {
    const Share& mine = share();
    const std::int64_t rows = total(mine.queries);
    std::int64_t row = 0;
    for (const auto& [first, length] : mine.queries) {
      Part part{.inputs = {.q = rows_of(in_.q, row, length),
                           .kv_heads = mine.kv_heads,
                           .value_dim = in_.v.shape.dim,
                           .keys = split_.whole.keys,
                           .place = Place{first, split_.whole.queries, mine.first_kv_head * of_group,
                                          split_.whole.heads}},
                .outputs = out_,
                .options = options_of_rows(options_, rows, row, length)};
      part.outputs.out = rows_of(out_.out, row, length);
      if (out_.log_sum_exp) part.outputs.log_sum_exp = rows_of(*out_.log_sum_exp, row, length);
      part.options.executor = &moving_;
      parts_.push_back(std::move(part));
      row += length;
    }
  }

  void begin_streams() {
    for (const auto& [inputs, outputs, options] : parts_) streams_.emplace_back(inputs, outputs, options);
    make_slots();
  }

  // Where one rank has not the memory all refuse the call, and the group goes on.
  void begin_all_streams() {
    Agreement agreement(Agreement::Of::attention);
    try {
      if (own_) begin_streams();
    } catch (const std::exception& e) {
      agreement.refuse(e.what());
    }
    agreement.settle(only_);
  }

  Slot& slot_of(std::size_t n) { return slots_[n % slots_.size()]; }

  // Chunk n of every group of heads. The slot is that of a chunk this rank is done with, and has sent to all
  // what is its own of it.
  void send_off(std::size_t n) {
    slot_of(n).wait_until_free();
    for (const HeadGroup& group : groups_)
      for (const Piece& piece : group.chunks[n])
        if (&group == own_)
          send_off(piece, slot_of(n));
        else
          static_cast<void>(group_.broadcast(step_name, piece.owner, {}, group.members));
  }

  std::byte* bytes_of(const Piece& piece, const Slot& slot) const {
    return slot.keys + piece.first % chunk_keys * (key_bytes_ + value_bytes_);
  }

  void send_off(const Piece& piece, Slot& slot) {
    const std::span bytes(bytes_of(piece, slot),
                          static_cast<std::size_t>(piece.length * (key_bytes_ + value_bytes_)));
    const bool is_own = piece.owner == group_.rank();
    if (is_own)
      pack_rows(in_.v, piece.row, piece.length, pack_rows(in_.k, piece.row, piece.length, bytes.data()));
    (is_own ? slot.leaving : slot.arriving)
        .push_back(group_.broadcast(step_name, piece.owner, bytes, own_->members));
  }

  void attend(std::size_t n) {
    Slot& slot = slot_of(n);
    slot.wait_for_keys();
    const std::vector<Piece>& pieces = own_->chunks[n];
    const std::int64_t keys = pieces.back().first + pieces.back().length - pieces.front().first;
    if (pieces.size() > 1) join(pieces, slot, keys);
    const std::byte* bytes = pieces.size() > 1 ? chunk_ : slot.keys;
    const Shape k{in_.k.shape.batch, in_.k.shape.heads, keys, in_.k.shape.dim},
        v{k.batch, k.heads, keys, in_.v.shape.dim};
    for (KeyStream& stream : streams_) {
      stream.add({bytes, k, in_.k.dtype}, {bytes + keys * key_bytes_, v, in_.v.dtype});
      move();
    }
  }

  // What is under way.
  void move() {
    for (Slot& slot : slots_) slot.move();
  }

  // A chunk that came in pieces, once for all streams: each would copy it for itself.
  void join(const std::vector<Piece>& pieces, const Slot& slot, std::int64_t keys) {
    const std::int64_t heads = in_.k.shape.batch * in_.k.shape.heads;
    const threads::ForOneCall for_call(options_.threads, options_.executor);
    threads::parallel_for(static_cast<std::size_t>(heads), [&](std::size_t head) {
      for (const Piece& piece : pieces) {
        const std::byte* from = bytes_of(piece, slot);
        std::byte* to = chunk_;
        for (const std::int64_t of_token : {key_bytes_, value_bytes_}) {
          const std::int64_t row = of_token / heads, at = static_cast<std::int64_t>(head) * row;
          std::memcpy(to + at * keys + (piece.first - pieces.front().first) * row, from + at * piece.length,
                      static_cast<std::size_t>(piece.length * row));
          from += piece.length * of_token, to += keys * of_token;
        }
      }
    });
  }

  static constexpr const char* step_name = "keys and values";
  Group& group_;
  const GroupCall only_;
  const threads::StayAwake awake_{};
  const Split& split_;
  const Inputs& in_;
  const Outputs& out_;
  const Options& options_;
  MovingExecutor moving_{options_.threads, options_.executor, [this] { move(); }};
  std::vector<HeadGroup> groups_{};
  const HeadGroup* own_ = nullptr;                // null: this rank has no heads
  std::vector<Part> parts_{};                     // one for each stretch of queries
  std::string stream_kernel_{};                   // that takes them, where memory may be shared
  std::vector<KeyStream> streams_{};              // one for each part, unless they were computed together
  std::int64_t key_bytes_ = 0, value_bytes_ = 0;  // of a token, of all batch entries and heads
  threads::ReusedMemory memory_{};
  std::byte* chunk_ = nullptr;  // one that is joined; the slots follow it
  std::vector<Slot> slots_ = std::vector<Slot>(1);
};

}  // namespace
}  // namespace heed::ranks

namespace HEED_NAMESPACE {

void attention(Group& group, const Split& split, const Inputs& inputs, const Outputs& outputs,
               const Options& options) {
  ranks::RankCall(group, split, inputs, outputs, options).run();
}

}  // namespace HEED_NAMESPACE
