// SPDX-License-Identifier: Apache-2.0
// A mask that heads share costs each of them a look at every element across its rows. It is turned into the
// order in which a panel's scores lie once for all of them, where that pays.
#pragma once
#include "cpu/call.hpp"

namespace heed::cpu {

// What a call's mask would take in panels of so many rows; nothing where it is read as it lies.
SharedMask plan_shared_mask(const Call&, int panel_rows);

// How many bytes that is, and the same in memory of so many.
std::int64_t bytes_of(const SharedMask&);
SharedMask placed(SharedMask, void* memory);

}  // namespace heed::cpu
