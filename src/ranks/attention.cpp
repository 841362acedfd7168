// SPDX-License-Identifier: Apache-2.0
// Attention over ranks: every rank streams the keys of its heads, its own and those it is sent, in order.
// While a piece is computed the next one travels.
#include <algorithm>
#include <array>
#include <optional>

#include "heed/distributed.hpp"
#include "heed/stream.hpp"
#include "ranks/agreement.hpp"
#include "ranks/group_call.hpp"
#include "ranks/meaning.hpp"
#include "ranks/pieces.hpp"
#include "ranks/rows.hpp"
#include "ranks/share.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

// One rank's part of the call.
class RankCall {
 public:
  RankCall(Group& group, const Split& split, const Inputs& in, const Outputs& out, const Options& options)
      : group_(group), only_(group), split_(split), in_(in), options_(options) {
    Agreement agreement(Agreement::Of::attention);
    try {
      prepare(out);
    } catch (const std::exception& e) {  // also where memory ends
      agreement.refuse(e.what());
    }
    describe(agreement, group, split, own_ ? &in : nullptr, options);
    agreement.settle(group);
  }

  void run() {
    or_abort(group_, [this] { stream_keys(); });
    finish();
  }

 private:
  // Pieces travel ahead of what is computed, as many as this rank has room for: under a causal mask not all
  // have the same to do with every piece, only with all of them.
  void stream_keys() {
    std::size_t most = 0;
    for (const HeadGroup& g : groups_) most = std::max(most, g.pieces.size());
    const std::size_t ahead = slots_.size() - 1;
    for (std::size_t n = 0; n < most + ahead; ++n) {
      if (n < most) send_off(n);
      if (n >= ahead) attend(n - ahead);
    }
    for (Slot& slot : slots_) slot.under_way.wait();
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

  // A piece that travels, or is there.
  struct Slot {
    std::vector<std::byte> bytes{};
    Group::Pending under_way{};
  };

  const Share& share() const { return split_.of_rank[static_cast<std::size_t>(group_.rank())]; }

  void prepare(const Outputs& out) {
    groups_ = head_groups_for(group_, split_);
    own_ = own_group(groups_, group_.rank());
    check_share(share(), split_, in_, options_);
    if (!own_) return;
    check_rows("out", View(out.out), total(share().queries));
    begin_streams(out, split_.whole.heads / split_.whole.kv_heads);
    const Shape &k = in_.k.shape, &v = in_.v.shape;
    row_bytes_ = {k.batch * k.heads * k.dim * element_bytes(in_.k),
                  v.batch * v.heads * v.dim * element_bytes(in_.v)};
    const std::int64_t piece = std::min(piece_keys, split_.whole.keys), own = total(share().keys);
    slots_.resize(static_cast<std::size_t>(std::max<std::int64_t>(2, (own + piece_keys - 1) / piece_keys)));
    for (Slot& slot : slots_)
      slot.bytes.resize(static_cast<std::size_t>(piece * (row_bytes_[0] + row_bytes_[1])));
  }

  void begin_streams(const Outputs& out, std::int64_t of_group) {
    const Share& mine = share();
    const std::int64_t rows = total(mine.queries);
    std::int64_t row = 0;
    for (const auto& [first, length] : mine.queries) {
      Outputs part = out;
      part.out = rows_of(out.out, row, length);
      if (out.log_sum_exp) part.log_sum_exp = rows_of(*out.log_sum_exp, row, length);
      const StreamInputs inputs{
          .q = rows_of(in_.q, row, length),
          .kv_heads = mine.kv_heads,
          .value_dim = in_.v.shape.dim,
          .keys = split_.whole.keys,
          .place = Place{first, split_.whole.queries, mine.first_kv_head * of_group, split_.whole.heads}};
      const Options options = options_of_rows(options_, rows, row, length);
      streams_.emplace_back(inputs, part, options);
      row += length;
    }
  }

  Slot& slot_of(std::size_t n) { return slots_[n % slots_.size()]; }

  // Piece n of every group of heads. The slot is that of a piece this rank is done with, and has sent to all
  // if it is its own.
  void send_off(std::size_t n) {
    Slot& slot = slot_of(n);
    slot.under_way.wait();
    for (const HeadGroup& g : groups_) {
      if (n >= g.pieces.size()) continue;
      const Piece& piece = g.pieces[n];
      const bool is_own = &g == own_;
      std::span<std::byte> bytes;
      if (is_own) {
        bytes = std::span(slot.bytes)
                    .first(static_cast<std::size_t>(piece.length * (row_bytes_[0] + row_bytes_[1])));
        if (piece.owner == group_.rank())
          pack_rows(in_.v, piece.row, piece.length, pack_rows(in_.k, piece.row, piece.length, bytes.data()));
      }
      Group::Pending pending = group_.broadcast("keys and values", piece.owner, bytes, g.members);
      if (is_own) slot.under_way = std::move(pending);
    }
  }

  void attend(std::size_t n) {
    if (!own_ || n >= own_->pieces.size()) return;
    const Piece& piece = own_->pieces[n];
    Slot& slot = slot_of(n);
    if (piece.owner != group_.rank()) slot.under_way.wait();
    const std::byte* bytes = slot.bytes.data();
    const Shape k{in_.k.shape.batch, in_.k.shape.heads, piece.length, in_.k.shape.dim},
        v{k.batch, k.heads, piece.length, in_.v.shape.dim};
    for (KeyStream& stream : streams_) {
      stream.add({bytes, k, in_.k.dtype}, {bytes + piece.length * row_bytes_[0], v, in_.v.dtype});
      for (Slot& each : slots_) each.under_way.is_done();  // moves what is under way
    }
  }

  Group& group_;
  const GroupCall only_;
  const Split& split_;
  const Inputs& in_;
  const Options& options_;
  std::vector<HeadGroup> groups_{};
  const HeadGroup* own_ = nullptr;           // null: this rank has no heads
  std::vector<KeyStream> streams_{};         // one for each stretch of queries
  std::array<std::int64_t, 2> row_bytes_{};  // of one key, and of one value, of all batch entries and heads
  std::vector<Slot> slots_ = std::vector<Slot>(2);
};

}  // namespace
}  // namespace heed::ranks

namespace heed::inline v0_2 {

void attention(Group& group, const Split& split, const Inputs& inputs, const Outputs& outputs,
               const Options& options) {
  ranks::RankCall(group, split, inputs, outputs, options).run();
}

}  // namespace heed::inline v0_2
