// SPDX-License-Identifier: Apache-2.0
// heed bench --suite ranks: attention over ranks against one process, and what docs/scale.md predicts of it.
#pragma once
#include "command.hpp"
#include "console.hpp"

namespace heed::tool {

// 1, 2, 4 and 8 ranks as threads with one thread each. 16384 tokens, or `quick` 2048. Fails where a bit
// differs.
Status bench_ranks(bool is_quick, const Console&);

}  // namespace heed::tool
