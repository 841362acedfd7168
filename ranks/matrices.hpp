// SPDX-License-Identifier: Apache-2.0
// The bias and the boolean masks of a call over ranks: whether each has a row for every query or one for all
// of them, and likewise for heads.
#pragma once
#include <vector>

#include "heed/distributed.hpp"
#include "ranks/pieces.hpp"
#include "ranks/rows_for_heads.hpp"

namespace heed::ranks {

struct Matrix {
  const char* name;
  Travelling as{};  // its axes are for settle_axes() to find
};

// Of one rank, of a fixed size.
struct MatrixShapes {
  static constexpr std::size_t most = 16;
  std::int64_t count = 0;
  Shape shape[most] = {};
};

// The bias, where there is one, then the boolean masks in their order.
std::vector<Matrix> matrices_of(const Options&);
// Those of every rank. All begin this step, before any knows whether the others mean the same call.
std::vector<MatrixShapes> gather_shapes(Group&, const std::vector<Matrix>&);
// Decides what axes count, for the members of `own`. A rank with one query cannot tell whether a row is that
// query's or everybody's: it is what it is on the others. Throws Error where they do not fit.
void settle_axes(std::vector<Matrix>&, const std::vector<MatrixShapes>&, const Split&, const HeadGroup& own,
                 int rank);

}  // namespace heed::ranks
