// SPDX-License-Identifier: Apache-2.0
// Runs a Problem on one CPU target: lowers it to a Call, cuts it into tasks, shares them out.
#pragma once
#include <string>

#include "cpu/isa/target.hpp"
#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::cpu {

// HEED_TARGET, as the process first found it: the only target that is not ruled out; empty: none is. A name
// that no target of this build has is ignored. Warns of that, and of a target that this machine cannot run.
// Not const for the sake of tests.
std::string& forced_target();

// Why this machine, or the forced target, rules the target out; empty when neither does.
Reason unavailable(const Target&);

// The first target for every dtype that nothing rules out; and the first for bf16 alone, null where there is
// none.
const Target& best_target();
const Target* best_bf16_target();

// Why a target does not take a problem; empty when it does. Each kernel returns whether it left something to
// the reference: where a row holds NaN or an infinity, or numbers on the way to it do not fit f32, every
// result that this reaches is written as NaN or an infinity (S13).

// Many rows: keys and values are packed.
Reason prefill_refuses(const Target&, const Problem&);
[[nodiscard]] bool prefill(const Target&, const Problem&);

// Few rows: keys are cut into chunks that run apart.
Reason decode_refuses(const Target&, const Problem&);
[[nodiscard]] bool decode(const Target&, const Problem&);

}  // namespace heed::cpu
