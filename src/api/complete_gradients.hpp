// SPDX-License-Identifier: Apache-2.0
// The gradients that a kernel could not finish (S13, G9), computed in 64 bits with the reference's bits: rows
// of a KV head against all its keys at once. The rest keeps its bits.
#pragma once
#include "problem/problem.hpp"

namespace heed::api {

void complete_gradients(const GradientProblem&, const UnfinishedGradients&);

}  // namespace heed::api
