// SPDX-License-Identifier: Apache-2.0
// The backward pass on a stream: rows are prepared, a kernel of one of the kinds below makes dQ, dK, dV and
// the gradient by the bias, the gradient by the sink is made of what the rows have to themselves, and what
// f32 could not finish is completed in double precision. No sum runs in the order of arrival.
#pragma once
#include <cstdint>

#include "cuda/backward/mask.hpp"
#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// Before a kernel and after it. A kernel that has the CPU's bits wants delta in the CPU's chains.
enum class Sums : std::uint8_t { of_the_cpu, of_warps };
void launch_prepare(const GradientCall&, Sums, Stream);
void launch_sink_gradient(const GradientCall&, Stream);
// Whether a kernel writes what it marks, unless it adds to what is there: of that, finite numbers count.
enum class Marked : std::uint8_t { unwritten, written };
void launch_completion(const GradientCall&, Marked, Stream);

// A kernel, between them, writes g.q, g.k, g.v and g.bias where they are given, all elements but those of
// padded queries, or marks what it leaves unfinished. Each has, as the forward kernels: why it does not take
// a call (null: it does), how many bytes it needs behind the counters, and its launch. Masks are those of a
// call whose lists are the host's (mask_tiles), and have no words yet.

// bf16 and f16 on Hopper's matrix units. It prepares rows by itself.
const char* hopper_backward_refuses(const GradientCall&);
bool hopper_writes_marked(const GradientCall&);  // Marked::written
std::int64_t hopper_backward_bytes(const GradientCall&);
void launch_hopper_backward(const GradientCall&, const MaskTiles&, const Workspace&, Stream);

// Everything in f32, with the CPU's bits.
const char* exact_backward_refuses(const GradientCall&);
std::int64_t exact_backward_bytes(const GradientCall&);
void launch_exact_backward(const GradientCall&, const Workspace&, Stream);
// The bias alone, for any kernel.
void launch_exact_bias_gradient(const GradientCall&, Stream);

// bf16 and f16, heads of up to 256 dimensions, every option, on the matrix units of every architecture
// since 8.0.
const char* general_backward_refuses(const GradientCall&);
std::int64_t general_backward_bytes(const GradientCall&);
void launch_general_backward(const GradientCall&, const MaskTiles&, const Workspace&, Stream);

}  // namespace heed::cuda
