// SPDX-License-Identifier: Apache-2.0
// The cases over a KvCache made ready to run.
#pragma once
#include "bench/workload.hpp"

namespace heed::tool {

std::unique_ptr<Workload> make_cached_workload(const Case&);

// Appends random tokens to a sequence until it has this many.
void fill_sequence(KvCache&, std::int64_t sequence, std::int64_t length);

}  // namespace heed::tool
