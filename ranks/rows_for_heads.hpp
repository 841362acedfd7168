// SPDX-License-Identifier: Apache-2.0
// Rows exchanged for heads: ranks that share heads have some rows of all of them, and for a while all rows of
// some.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.hpp"
#include "heed/distributed.hpp"
#include "ranks/pieces.hpp"
#include "ranks/rows.hpp"

namespace heed::ranks {

// What an axis of an array counts; `shared`: it has one entry, which is everybody's.
enum class Axis : std::uint8_t { of_queries, of_keys, shared };

// One array that travels.
struct Travelling {
  Axis rows = Axis::of_queries, heads = Axis::of_queries;
  Elements own{};  // this rank's share of it
};

// All rows of some heads.
struct Whole {
  std::vector<std::byte> memory{};
  Shape shape{};
  std::int64_t bytes = 0;  // of one element

  Whole() = default;
  Whole(const Shape& extents, std::int64_t element)
      : memory(static_cast<std::size_t>(extents.elements() * element)), shape(extents), bytes(element) {}
  MutableView numbers(DType dtype) { return {memory.data(), shape, dtype}; }
  BoolView booleans() const { return {reinterpret_cast<const bool*>(memory.data()), shape}; }
};

// What goes back to where the rows are.
struct Returning {
  Travelling of;
  DType dtype;
  Whole made;
  MutableView into;  // rows of this rank's share
  bool adds;         // to what is there, rounding once, where all ranks get the same rows
};

class RowsForHeads {
 public:
  // Who has all rows in between: every member of a group of heads of as many of them as the others, or the
  // first of all heads, for sums that cross them.
  enum class Between : std::uint8_t { each_some_heads, first_all_heads };

  // A rank without heads, `own` null, begins the same steps.
  RowsForHeads(Group& group, const Split& split, const HeadGroup* own, Between between)
      : group_(group), split_(split), own_(own), between_(between) {}

  // The KV heads of its group whose rows this rank has in between, counted in the group.
  Stretch own_heads() const;
  // Those of an array among its own.
  Stretch heads_in(const Travelling&, const Stretch& kv_heads) const;

  Whole make_whole(const Travelling&, std::int64_t bytes) const;
  void to_heads(const std::vector<Travelling>&, const std::vector<Whole*>& into);
  void to_rows(const std::vector<Returning>&, const Backend&);

 private:
  using Blobs = std::vector<std::vector<std::byte>>;  // one for each rank

  const Share& share_of(int rank) const { return split_.of_rank[static_cast<std::size_t>(rank)]; }
  Stretch heads_of_member(std::size_t n) const;
  const std::vector<Stretch>& stretches(const Travelling&, int rank) const;
  // Of a rank's rows of these KV heads.
  std::size_t bytes_of_rows(const Travelling&, int rank, const Stretch& kv_heads, std::int64_t bytes) const;
  Blobs blobs() const { return Blobs(static_cast<std::size_t>(group_.size())); }
  void exchange(const char* what, const Blobs& to, Blobs& from);
  void write_rows(const std::byte* from, const Stretch& kv_heads, const std::vector<Returning>&,
                  const Backend&) const;

  Group& group_;
  const Split& split_;
  const HeadGroup* own_;
  Between between_;
};

}  // namespace heed::ranks
