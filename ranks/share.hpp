// SPDX-License-Identifier: Apache-2.0
// That a rank was called with its share.
#pragma once
#include <cstdint>
#include <vector>

#include "heed/distributed.hpp"
#include "ranks/pieces.hpp"

namespace heed::ranks {

// Throws Error where the split is not for the ranks of the group, or no split at all.
std::vector<HeadGroup> head_groups_for(const Group&, const Split&);
// The one that a rank is a member of; null: it has no heads.
const HeadGroup* own_group(const std::vector<HeadGroup>&, int rank);

// That q, k and v fit each other and have the rows and heads of the share. Throws Error.
void check_share(const Share&, const Split&, const Inputs&, const Options&);
void check_rows(const char* name, const View&, std::int64_t rows);

}  // namespace heed::ranks
