// SPDX-License-Identifier: Apache-2.0
// Runs a Problem on one CPU target: lowers it to a Call, cuts it into tasks, shares them out.
#pragma once
#include "cpu/target/target.hpp"
#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::cpu {

// Why this machine, or HEED_TARGET, rules the target out; empty when neither does.
Reason unavailable(const Target&);

// The first target with projections that nothing rules out.
const Target& best_target();

// Many rows: keys and values are packed. Why a target does not take a problem; empty when it does.
Reason prefill_refuses(const Target&, const Problem&);
void prefill(const Target&, const Problem&);

// Few rows: keys are cut into chunks that run apart.
Reason decode_refuses(const Target&, const Problem&);
void decode(const Target&, const Problem&);

}  // namespace heed::cpu
