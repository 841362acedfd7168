// SPDX-License-Identifier: Apache-2.0
// What the tool asks of the operating system: system_posix.cpp and system_windows.cpp answer.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace heed::tool {

enum class Output { standard, error };
bool is_terminal(Output);
void write_error(std::string_view text);  // at once: for a signal handler

void set_environment(const char* name, const std::string& value);  // of this process and those that it starts
int process_id();
int logical_cpus();
std::size_t physical_memory_bytes();

// Starts the machine's browser on a file; does not wait for it. False where there is none to start.
bool open_in_browser(const std::string& path);

// What the processor multiplies int8 with; of what heed computes with, computes_with() tells.
struct ArmExtensions {
  bool dotprod = false, i8mm = false;
};
ArmExtensions arm_extensions();

}  // namespace heed::tool
