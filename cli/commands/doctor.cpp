// SPDX-License-Identifier: Apache-2.0
// heed doctor: what this machine offers, how heed was built, and what will make it slow.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "arguments.hpp"
#include "command.hpp"
#include "heed/attention.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"
#include "machine.hpp"
#include "system.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

std::string compiler() {
#ifdef __clang__
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

const char* architecture() {
#if defined(__aarch64__)
  return "aarch64";
#elif defined(__x86_64__)
  return "x86-64";
#elif defined(__riscv)
  return "riscv";
#else
  return "another";
#endif
}

std::vector<std::string> warnings() {
  std::vector<std::string> found;
#ifndef __OPTIMIZE__
  found.push_back(
      "built without optimisation: expect a tenth of the speed; configure with CMAKE_BUILD_TYPE=Release");
#endif
  if (*HEED_SANITIZERS)
    found.push_back("built with -fsanitize=" HEED_SANITIZERS ": for tests, not for speed");
  for (const std::string& warning : environment_warnings()) found.push_back(warning);
  const unsigned logical = std::thread::hardware_concurrency();
  if (logical && static_cast<unsigned>(num_threads()) > logical)
    found.push_back(
        fmt::format("{} threads on {} logical CPUs: they will wait for each other", num_threads(), logical));
  return found;
}

Status examine(Console& console) {
  nlohmann::ordered_json environment = nlohmann::ordered_json::object();
  std::string set_variables;
  for (const char* name : {"HEED_NUM_THREADS", "HEED_TARGET"}) {
    const char* value = std::getenv(name);
    environment[name] = value ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
    if (value) set_variables += fmt::format("{}{}={}", set_variables.empty() ? "" : " ", name, value);
  }
  const std::vector<std::string> found = warnings();
  console.result({{"version", version()},
                  {"compiler", compiler()},
                  {"architecture", architecture()},
                  {"cpu", cpu_model()},
                  {"logical_cpus", logical_cpus()},
                  {"threads", num_threads()},
                  {"kernels", kernel_names()},
                  {"environment", environment},
                  {"warnings", found}});
  std::string kernels;
  for (const std::string& kernel : kernel_names()) kernels += (kernels.empty() ? "" : ", ") + kernel;
  console.print(list_of(console, {{"version", version()},
                                  {"compiler", compiler()},
                                  {"architecture", architecture()},
                                  {"cpu", cpu_model()},
                                  {"logical cpus", fmt::format("{}", logical_cpus())},
                                  {"threads", fmt::format("{}", num_threads())},
                                  {"kernels", kernels},
                                  {"environment", set_variables.empty() ? "nothing set" : set_variables}}));
  // The library has said its own.
  const std::vector<std::string> said = environment_warnings();
  for (const std::string& warning : found)
    if (std::find(said.begin(), said.end(), warning) == said.end()) console.warn(warning);
  return done;
}

}  // namespace

Action add_doctor(CLI::App& app) {
  describe(app, "What this machine offers and how heed was built",
           "Examples:\n"
           "  heed doctor\n"
           "  heed doctor --json");
  return examine;
}

}  // namespace heed::tool
