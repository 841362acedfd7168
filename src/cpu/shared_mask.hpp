// SPDX-License-Identifier: Apache-2.0
// A mask that heads and batch entries share costs each of them a look at every element across its rows. Where
// that pays, it is transposed into the order in which a panel's scores lie, for all tasks of the same rows
// that follow each other in a slot of scratch (cpu/stripes.hpp).
#pragma once
#include <cstddef>

#include "cpu/call.hpp"
#include "cpu/isa/target.hpp"

namespace heed::cpu {

// What the mask of a task of so many rows would take, in panels; nothing where it is read as it lies. There
// is one for every slot.
SharedMask plan_shared_mask(const Call&, int panel_rows, std::int64_t rows, std::size_t slots);
std::int64_t bytes_of(const SharedMask&);

// The panels that lie transposed in a slot's memory: [begin, end) of a batch entry, or of all that share
// them.
struct TransposedPanels {
  std::int64_t owner = -1, begin = 0, end = 0;
};

// A call whose mask was planned with that of a task's rows, in the memory of a slot that has these panels: it
// is transposed there unless they are it.
Call with_mask_of(const Rows&, const Call&, const Target&, TransposedPanels&, void* memory);

}  // namespace heed::cpu
