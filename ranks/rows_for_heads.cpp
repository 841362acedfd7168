// SPDX-License-Identifier: Apache-2.0
#include "ranks/rows_for_heads.hpp"

namespace heed::ranks {
namespace {

std::vector<std::byte>& of_rank(std::vector<std::vector<std::byte>>& blobs, int rank) {
  return blobs[static_cast<std::size_t>(rank)];
}

}  // namespace

Stretch RowsForHeads::heads_of_member(std::size_t n) const {
  if (between_ == Between::first_all_heads) return {0, n == 0 ? own_->kv_heads : 0};
  return part(own_->kv_heads, std::ssize(own_->members), static_cast<std::int64_t>(n));
}

Stretch RowsForHeads::own_heads() const {
  std::size_t n = 0;
  while (own_->members[n] != group_.rank()) ++n;
  return heads_of_member(n);
}

Stretch RowsForHeads::heads_in(const Travelling& t, const Stretch& kv_heads) const {
  if (t.heads == Axis::of_keys) return kv_heads;
  if (t.heads == Axis::shared) return {0, kv_heads.length > 0 ? 1 : 0};
  const std::int64_t of_one = split_.whole.heads / split_.whole.kv_heads;
  return {kv_heads.first * of_one, kv_heads.length * of_one};
}

const std::vector<Stretch>& RowsForHeads::stretches(const Travelling& t, int rank) const {
  static const std::vector<Stretch> one_row{{0, 1}};
  if (t.rows == Axis::shared) return one_row;
  return t.rows == Axis::of_keys ? share_of(rank).keys : share_of(rank).queries;
}

Whole RowsForHeads::make_whole(const Travelling& t, std::int64_t bytes) const {
  const std::int64_t length = t.rows == Axis::shared    ? 1
                              : t.rows == Axis::of_keys ? split_.whole.keys
                                                        : split_.whole.queries;
  return {{t.own.shape.batch, heads_in(t, own_heads()).length, length, t.own.shape.dim}, bytes};
}

std::size_t RowsForHeads::bytes_of_rows(const Travelling& t, int rank, const Stretch& kv_heads,
                                        std::int64_t bytes) const {
  const Shape& s = t.own.shape;
  return static_cast<std::size_t>(s.batch * heads_in(t, kv_heads).length * total(stretches(t, rank)) * s.dim *
                                  bytes);
}

void RowsForHeads::exchange(const char* what, const Blobs& to, Blobs& from) {
  const std::vector<std::span<const std::byte>> sent(to.begin(), to.end());
  const std::vector<std::span<std::byte>> received(from.begin(), from.end());
  group_.all_to_all(what, sent, received).wait();
}

// To every member the rows of this rank, of the heads that member has in between.
void RowsForHeads::to_heads(const std::vector<Travelling>& all, const std::vector<Whole*>& into) {
  Blobs to = blobs(), from = blobs();
  for (std::size_t n = 0; own_ && n < own_->members.size(); ++n) {
    const int member = own_->members[n];
    const Stretch heads = heads_of_member(n);
    std::size_t sent = 0, received = 0;
    for (const Travelling& t : all) {
      sent += bytes_of_rows(t, group_.rank(), heads, t.own.bytes);
      received += bytes_of_rows(t, member, own_heads(), t.own.bytes);
    }
    of_rank(to, member).resize(sent);
    of_rank(from, member).resize(received);
    std::byte* at = of_rank(to, member).data();
    for (const Travelling& t : all) {
      const auto [first, count] = heads_in(t, heads);
      at = pack_rows(heads_of(t.own, first, count), 0, t.own.shape.length, at);
    }
  }
  exchange("rows for heads", to, from);
  for (std::size_t n = 0; own_ && n < own_->members.size(); ++n) {
    const std::byte* at = of_rank(from, own_->members[n]).data();
    for (std::size_t i = 0; i < all.size(); ++i)
      at = unpack_stretches(at, stretches(all[i], own_->members[n]),
                            {into[i]->memory.data(), into[i]->shape, into[i]->bytes});
  }
}

// To every member its rows, of the heads of this rank.
void RowsForHeads::to_rows(const std::vector<Returning>& all, const Backend& backend) {
  Blobs to = blobs(), from = blobs();
  for (std::size_t n = 0; own_ && n < own_->members.size(); ++n) {
    const int member = own_->members[n];
    std::size_t sent = 0, received = 0;
    for (const Returning& r : all) {
      sent += bytes_of_rows(r.of, member, own_heads(), r.made.bytes);
      received += bytes_of_rows(r.of, group_.rank(), heads_of_member(n), r.made.bytes);
    }
    of_rank(to, member).resize(sent);
    of_rank(from, member).resize(received);
    std::byte* at = of_rank(to, member).data();
    for (const Returning& r : all)
      for (const auto& [first, length] : stretches(r.of, member))
        at = pack_rows(View(r.made.memory.data(), r.made.shape, r.dtype), first, length, at);
  }
  exchange("gradients", to, from);
  for (std::size_t n = 0; own_ && n < own_->members.size(); ++n)
    write_rows(of_rank(from, own_->members[n]).data(), heads_of_member(n), all, backend);
}

void RowsForHeads::write_rows(const std::byte* from, const Stretch& kv_heads,
                              const std::vector<Returning>& all, const Backend& backend) const {
  for (const Returning& r : all) {
    const auto [first, count] = heads_in(r.of, kv_heads);
    const MutableView into = heads_of(r.into, first, count);
    std::int64_t row = 0;
    for (const Stretch& s : stretches(r.of, group_.rank())) {
      Shape shape = into.shape;
      shape.length = s.length;
      const View received(from, shape, r.dtype);
      const MutableView rows = rows_of(into, row, s.length);
      if (shape.elements() > 0) r.adds ? backend.add(received, rows) : backend.copy(received, rows);
      from += static_cast<std::size_t>(shape.elements()) * bytes_of(r.dtype);
      row += s.length;
    }
  }
}

}  // namespace heed::ranks
