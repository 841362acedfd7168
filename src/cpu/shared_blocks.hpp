// SPDX-License-Identifier: Apache-2.0
// Tasks that read one KV head can pack its keys and values once for all of them
// (tile/operands.hpp), where the memory of a call has room for that.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"

namespace heed::cpu {

// What the blocks of a call would take, a block so many floats, where so many tasks run on so many threads;
// nothing where every task packs for itself.
SharedBlocks plan_shared_blocks(const Call&, std::int64_t block_floats, std::int64_t tasks,
                                std::int64_t threads);

// How many bytes that is, and the same in memory of so many: nobody has packed any of them.
std::int64_t bytes_of(const SharedBlocks&);
SharedBlocks placed(SharedBlocks, void* memory);

}  // namespace heed::cpu
