// SPDX-License-Identifier: Apache-2.0
// Which scores a call writes: plain data that kernels of every instruction set and device read.
#pragma once
#include <cstdint>

namespace heed::problem {

enum class ScoreStage : std::uint8_t { none, raw, softcapped, biased };  // S4

}  // namespace heed::problem

namespace heed {
using problem::ScoreStage;
}
