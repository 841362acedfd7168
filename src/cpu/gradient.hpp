// SPDX-License-Identifier: Apache-2.0
// Runs a GradientProblem on one CPU target: lowers it to a GradientCall, cuts it into tasks, shares them out.
#pragma once
#include "cpu/isa/target.hpp"
#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::cpu {

// Why a target does not take a problem; empty when it does.
Reason gradient_refuses(const Target&, const GradientProblem&);

// What it leaves to the reference is not written.
[[nodiscard]] UnfinishedGradients gradient(const Target&, const GradientProblem&);

}  // namespace heed::cpu
