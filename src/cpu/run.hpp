// SPDX-License-Identifier: Apache-2.0
// Runs a Problem on one CPU target: lowers it to a Call, cuts it into tasks, shares them out.
#pragma once
#include <string>

#include "cpu/target/target.hpp"
#include "problem/problem.hpp"

namespace heed::cpu {

// Why this machine, or HEED_TARGET, rules the target out; empty when neither does.
std::string unavailable(const Target&);

// The first target that nothing rules out.
const Target& best_target();

// Many rows: keys and values are packed. Takes everything.
void prefill(const Target&, const Problem&);

// Few rows: keys and values are read where they lie. Why it does not take a problem; empty when it does.
std::string decode_refuses(const Problem&);
void decode(const Target&, const Problem&);

}  // namespace heed::cpu
