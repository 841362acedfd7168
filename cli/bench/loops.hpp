// SPDX-License-Identifier: Apache-2.0
// The tight loops behind the machine's limits: nothing but the instruction that is measured, in assembly, so
// that no compiler spills, fuses or drops it. One .cpp per architecture defines all four.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace heed::tool {

struct ArithmeticLoop {
  std::string instruction;
  double operations_per_round;  // a multiply-add is two
  void (*run)(std::int64_t rounds);
};

ArithmeticLoop fp32_loop();                 // the widest fp32 multiply-add of this CPU
std::optional<ArithmeticLoop> bf16_loop();  // bf16 products into fp32; none where the CPU has no such thing
std::optional<ArithmeticLoop> int8_loop();  // int8 products into int32

// Loads `bytes` bytes, a multiple of read_step, one after the other.
constexpr std::size_t read_step = 256;
using ReadLoop = void (*)(const std::byte* from, std::size_t bytes);
ReadLoop read_loop();

}  // namespace heed::tool
