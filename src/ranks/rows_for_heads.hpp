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

namespace heed::ranks {

// One array that travels: rows of queries or of keys, and heads of either kind.
struct Travelling {
  bool is_of_keys = false;
  View rows{};  // this rank's share of it
};

// All rows of some heads.
struct Whole {
  std::vector<std::byte> memory{};
  MutableView view{};

  Whole() = default;
  Whole(const Shape& shape, DType dtype)
      : memory(static_cast<std::size_t>(shape.elements()) * bytes_of(dtype)),
        view(memory.data(), shape, dtype) {}
};

// What goes back to where the rows are.
struct Returning {
  Travelling of;
  Whole made;
  MutableView into;  // rows of this rank's share
};

class RowsForHeads {
 public:
  // A rank without heads, `own` null, begins the same steps.
  RowsForHeads(Group& group, const Split& split, const HeadGroup* own)
      : group_(group), split_(split), own_(own) {}

  // The KV heads of its group whose rows this rank has in between, counted in the group.
  Stretch own_heads() const;
  std::int64_t query_heads_of_one() const { return split_.whole.heads / split_.whole.kv_heads; }

  Whole make_whole(const Travelling&, DType) const;
  void to_heads(const std::vector<Travelling>&, const std::vector<Whole>& into);
  // Writes, or adds to what is there, rounding once.
  void to_rows(const std::vector<Returning>&, bool accumulate, const Backend&);

 private:
  using Blobs = std::vector<std::vector<std::byte>>;  // one for each rank

  const Share& share_of(int rank) const { return split_.of_rank[static_cast<std::size_t>(rank)]; }
  Stretch heads_of_member(std::size_t n) const;
  std::int64_t heads_for(const Travelling&, std::int64_t kv_heads) const;
  const std::vector<Stretch>& stretches(const Travelling&, int rank) const;
  // Of a rank's rows of so many KV heads.
  std::size_t bytes_of_rows(const Travelling&, int rank, std::int64_t kv_heads, DType) const;
  Blobs blobs() const { return Blobs(static_cast<std::size_t>(group_.size())); }
  void exchange(const char* what, const Blobs& to, Blobs& from);
  void write_rows(const std::byte* from, const Stretch& kv_heads, const std::vector<Returning>&,
                  bool accumulate, const Backend&) const;

  Group& group_;
  const Split& split_;
  const HeadGroup* own_;
};

}  // namespace heed::ranks
