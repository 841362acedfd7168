// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace heed::cpu {

// How many threads this process should use: HEED_NUM_THREADS, else what affinity and the cgroup's quota
// allow.
int allowed_threads();

}  // namespace heed::cpu
