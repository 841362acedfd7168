// SPDX-License-Identifier: Apache-2.0
// What the CPU does for its backend. Each kind of work on a problem has a driver beside its kernels: it
// lowers the problem to a Call for one target, cuts that into tasks and shares them out. Projections, which
// outlive a call, are in projection/driver.hpp.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/target.hpp"
#include "heed/attention.hpp"
#include "heed/rotary.hpp"
#include "heed/tensor.hpp"
#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::cpu {

// backend.cpp: which target serves a call.

// HEED_TARGET, as the process first found it: the only target that is not ruled out; empty: none is. A name
// that no target of this build has is ignored. Warns of that, and of a target that this machine cannot run.
// Not const for the sake of tests.
std::string& forced_target();

// Why this machine, or the forced target, rules the target out; empty when neither does.
Reason unavailable(const Target&);

// The first target for every dtype that nothing rules out; and the first for bf16 alone, null where none is.
const Target& best_target();
const Target* best_bf16_target();

// backend.cpp: why a target does not take a problem; empty when it does.
Reason prefill_refuses(const Target&, const Problem&);
Reason decode_refuses(const Target&, const Problem&);
Reason gradient_refuses(const Target&, const GradientProblem&);

// The drivers. A kernel returns whether rows need repair: where a row holds NaN or an infinity, or numbers on
// the way to it do not fit f32, every result that this reaches is written as NaN or an infinity (S13).

// prefill/driver.cpp: many rows. Keys and values are packed.
[[nodiscard]] bool prefill(const Target&, const Problem&);

// prefill/stream.cpp: the same, one stretch of keys at a time.
std::unique_ptr<Stream> begin_stream(const Target&, const Problem&);

// decode/driver.cpp: few rows. Keys are cut into chunks that run apart.
[[nodiscard]] bool decode(const Target&, const Problem&);

// decode/spread.cpp: the same over a cache whose chunks lie on several ranks.
std::unique_ptr<SpreadDecode> begin_spread(const Target&, const Problem&, const Spread&);

// backward/driver.cpp. What needs repair is not written, and marked.
[[nodiscard]] RepairMarks gradient(const Target&, const GradientProblem&);

// f64/driver.cpp: all of it in f64, few rows or many; gradient() above calls the second.
Reason f64_refuses(const Problem&);
[[nodiscard]] bool attend_f64(const Target&, const Problem&);
void gradient_f64(const Target&, const GradientCall&);

// f64/repair.cpp: repair (S13). Results that are NaN or infinite, of any type, are
// computed once more in f64, as the reference does; all others keep their bits.
void repair(const Problem&);
struct RowToRepair {
  std::int64_t b, h, i;
};
// All of them but rows of NaN, for those that have no keys to repair them with.
std::vector<RowToRepair> rows_to_repair(const Problem&);

// backward/driver.cpp: the same of the gradients that are marked.
void repair(const GradientProblem&, RepairMarks&);
void repair(const GradientCall&);

// arrays.cpp: other work on arrays. Results are rounded once to the type of what is written.
void copy(const View& from, const MutableView& into);
void add(const View& from, const MutableView& into);
void average_heads(const View& from, const MutableView& into);
void fill(const MutableView&, float);

// Joins two results row by row, in double precision.
void merge(const Outputs& into, const Results& other);

// Rotary position embedding (S15) in place, of tensors that differ in heads and strides only.
void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions, const Rotary&,
            std::span<const std::int64_t> lengths);

}  // namespace heed::cpu
