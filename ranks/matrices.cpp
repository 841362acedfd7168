// SPDX-License-Identifier: Apache-2.0
#include "ranks/matrices.hpp"

#include <algorithm>
#include <span>

#include "ranks/gathered.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

std::int64_t rows_of_rank(const Split& split, int rank) {
  return total(split.of_rank[static_cast<std::size_t>(rank)].queries);
}

void check_fits(const Matrix& m, std::int64_t rows, std::int64_t heads) {
  const Shape& s = m.as.own.shape;
  if (s.length != 1 && s.length != rows)
    throw refusal(Error::shape, m.name, ".length: ", s.length,
                  " is neither 1 nor the rows of this rank's share: ", rows);
  if (s.heads != 1 && s.heads != heads)
    throw refusal(Error::shape, m.name, ".heads: ", s.heads,
                  " is neither 1 nor the heads of this rank's share: ", heads);
}

// All that must be the same on ranks that share heads: everything but rows.
void check_same(const Matrix& m, int rank, const Shape& other, int other_rank) {
  const auto mine = axes(m.as.own.shape), theirs = axes(other);
  for (std::size_t n = 0; n < mine.size(); ++n)
    if (n != 2 && mine[n] != theirs[n])
      throw refusal(Error::shape, m.name, ".", axis_names[n], ": ", mine[n], " on rank ", std::int64_t{rank},
                    ", and ", theirs[n], " on rank ", std::int64_t{other_rank});
}

}  // namespace

std::vector<Matrix> matrices_of(const Options& options) {
  std::vector<Matrix> made;
  if (options.bias) made.push_back({"options.bias", {.own = *options.bias}});
  for (const Mask& mask : options.masks) {
    if (const auto* keep = std::get_if<Keep>(&mask)) made.push_back({"keep mask", {.own = keep->where}});
    if (const auto* hide = std::get_if<Hide>(&mask)) made.push_back({"hide mask", {.own = hide->where}});
  }
  return made;
}

std::vector<MatrixShapes> gather_shapes(Group& group, const std::vector<Matrix>& matrices) {
  MatrixShapes own{.count = std::ssize(matrices)};
  for (std::size_t n = 0; n < std::min(matrices.size(), own.most); ++n)
    own.shape[n] = matrices[n].as.own.shape;
  return gathered(group, "biases and boolean masks", own);
}

void settle_axes(std::vector<Matrix>& matrices, const std::vector<MatrixShapes>& all, const Split& split,
                 const HeadGroup& own, int rank) {
  if (matrices.size() > MatrixShapes::most)
    throw refusal(Error::unsupported, "options.masks: ", std::ssize(matrices),
                  " biases and boolean masks are more than ", std::int64_t{MatrixShapes::most});
  const std::int64_t heads = own.kv_heads * (split.whole.heads / split.whole.kv_heads);
  for (std::size_t n = 0; n < matrices.size(); ++n) {
    Matrix& m = matrices[n];
    check_fits(m, rows_of_rank(split, rank), heads);
    m.as.heads = m.as.own.shape.heads == heads ? Axis::of_queries : Axis::shared;
    m.as.rows = Axis::of_queries;
    int shares = -1, has_rows = -1;  // ranks that can tell
    for (const int member : own.members) {
      const MatrixShapes& theirs = all[static_cast<std::size_t>(member)];
      if (theirs.count != std::ssize(matrices)) return;  // another call, which the agreement will say
      check_same(m, rank, theirs.shape[n], member);
      const std::int64_t length = theirs.shape[n].length;
      if (rows_of_rank(split, member) != 1) (length == 1 ? shares : has_rows) = member;
    }
    if (shares >= 0 && has_rows >= 0)
      throw refusal(Error::shape, m.name, ": one row for all queries on rank ", std::int64_t{shares},
                    ", and a row for each on rank ", std::int64_t{has_rows});
    if (shares >= 0) m.as.rows = Axis::shared;
  }
}

}  // namespace heed::ranks
