// SPDX-License-Identifier: Apache-2.0
// See system.hpp: Windows. Compiled (docs/building.md); not run yet.
#include <io.h>
#include <process.h>
#include <windows.h>
// After windows.h, whose types it uses.
#include <shellapi.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "system.hpp"

namespace heed::tool {

bool is_terminal(Output output) { return _isatty(output == Output::standard ? 1 : 2) != 0; }

void write_error(std::string_view text) { _write(2, text.data(), static_cast<unsigned>(text.size())); }

void set_environment(const char* name, const std::string& value) { _putenv_s(name, value.c_str()); }

int process_id() { return _getpid(); }

int logical_cpus() { return static_cast<int>(std::thread::hardware_concurrency()); }

std::size_t physical_memory_bytes() {
  MEMORYSTATUSEX memory{};
  memory.dwLength = sizeof memory;
  return GlobalMemoryStatusEx(&memory) ? static_cast<std::size_t>(memory.ullTotalPhys) : 0;
}

bool open_in_browser(const std::string& path) {
  const std::filesystem::path file = std::filesystem::absolute(path);
  const auto result = reinterpret_cast<INT_PTR>(
      ShellExecuteW(nullptr, L"open", file.c_str(), nullptr, nullptr, SW_SHOWNORMAL));
  constexpr INT_PTR last_error = 32;  // what is above is no error
  return result > last_error;
}

ArmExtensions arm_extensions() { return {}; }

}  // namespace heed::tool
