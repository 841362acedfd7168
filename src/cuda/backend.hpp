// SPDX-License-Identifier: Apache-2.0
// CUDA as a backend; and its kernels one by one, for a call whose numbers lie on the current device.
#pragma once
#include <cstdint>

#include "backend/backend.hpp"
#include "cuda/lower.hpp"
#include "cuda/runtime/launch.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {

// Of a build with HEED_CUDA.
const Backend& cuda_backend();

// split is the general kernel for few queries over many keys, which it takes before prefill does.
enum class Role : std::uint8_t { decode, split, prefill, general, exact };

// The kernels that have gradients.
enum class BackwardRole : std::uint8_t { hopper, general, exact };

// Why this machine cannot run CUDA kernels, and why the current device cannot run one of ours; empty when it
// can.
Reason unavailable();
Reason wants_another_device(Role);
// Why a kernel does not take a call; empty when it does.
Reason refuses(Role, const LoweredCall&);
std::int64_t workspace_bytes(Role, const LoweredCall&);

// Returns when all is launched. Rows that f32 cannot hold are done in double precision on the device (S13),
// so nothing is left to anybody.
void run(Role, const LoweredCall&, const Workspace&, Stream, Cut = Cut::by_the_plan);

// The same for a backward pass.
Reason wants_another_device(BackwardRole);
Reason refuses(BackwardRole, const LoweredGradients&);
std::int64_t workspace_bytes(BackwardRole, const LoweredGradients&);
void run(BackwardRole, const LoweredGradients&, const Workspace&, Stream);

}  // namespace heed::cuda
