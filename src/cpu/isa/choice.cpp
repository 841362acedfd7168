// SPDX-License-Identifier: Apache-2.0
// Which target serves a call: the best that this machine can run, or the one that HEED_TARGET names.
#include <cstdlib>

#include "cpu/backend.hpp"
#include "cpu/drivers.hpp"
#include "threads/allowed.hpp"

namespace heed::cpu {
namespace {

std::string target_variable() {
  const char* const name = std::getenv("HEED_TARGET");
  return name ? name : "";
}

// Null where this build has none of that name.
const Target* target_named(const std::string& name) {
  for (const Target* target : targets())
    if (target->name == name) return target;
  return nullptr;
}

}  // namespace

std::string target_variable_fault() {
  const std::string name = target_variable();
  if (name.empty()) return "";
  if (const Target* const target = target_named(name)) {
    if (target->available()) return "";
    return "HEED_TARGET: this machine lacks " + std::string(target->requires_) + " for '" + name +
           "', and only the reference is left";
  }
  std::string known;
  for (const Target* target : targets()) known += (known.empty() ? "" : ", ") + std::string(target->name);
  constexpr std::size_t longest_quoted = 100;
  return "HEED_TARGET: '" + name.substr(0, longest_quoted) + "' is no target of this build, which has " +
         known + ", and is ignored";
}

std::string& forced_target() {
  static std::string& forced = *[] {  // never destroyed, as the backend
    if (const std::string fault = target_variable_fault(); !fault.empty()) threads::warn(fault);
    return new std::string(target_named(target_variable()) ? target_variable() : "");
  }();
  return forced;
}

Reason unavailable(const Target& target) {
  if (!target.available()) return [&target] { return std::string("this machine lacks ") + target.requires_; };
  if (!forced_target().empty() && forced_target() != target.name)
    return [] { return "HEED_TARGET is " + forced_target(); };
  return {};
}

const Target& best_target() {
  for (const Target* target : targets())
    if (!target->only_bf16 && !unavailable(*target)) return *target;
  return *targets().back();
}

const Target* best_bf16_target() {
  for (const Target* target : targets())
    if (target->only_bf16 && !unavailable(*target)) return target;
  return nullptr;
}

}  // namespace heed::cpu
