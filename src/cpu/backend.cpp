// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: everything it offers to the rest of the library, in one place.
#include "cpu/backend.hpp"

#include <cstdlib>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/isa/target.hpp"
#include "cpu/projection/driver.hpp"
#include "threads/allowed.hpp"
#include "threads/memory.hpp"

namespace heed::cpu {
namespace {

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> list;
  for (const Target* target : targets()) {
    const auto add = [&](const char* role, Kernel kernel) {
      kernel.name = std::string("cpu.") + role + "." + target->name;
      kernel.device = Device::cpu;
      kernel.unavailable = [target] { return unavailable(*target); };
      list.push_back(std::move(kernel));
    };
    const auto takes_few_rows = [target](const Problem& p) { return decode_refuses(*target, p); };
    const auto takes_many_rows = [target](const Problem& p) { return prefill_refuses(*target, p); };
    add("decode",
        {.refuses = takes_few_rows, .attend = [target](const Problem& p) { return decode(*target, p); }});
    add("prefill",
        {.refuses = takes_many_rows, .attend = [target](const Problem& p) { return prefill(*target, p); }});
    add("backward",
        {.refuses_backward = [target](const GradientProblem& g) { return gradient_refuses(*target, g); },
         .backward = [target](const GradientProblem& g) { return gradient(*target, g); }});
    if (target->f64.attend)
      add("f64", {.refuses = f64_refuses,
                  .attend = [target](const Problem& p) { return attend_f64(*target, p); },
                  .refuses_backward = [](const GradientProblem& g) { return f64_refuses(g.forward); },
                  .backward = [target](const GradientProblem& g) { return gradient(*target, g); }});
    add("stream", {.refuses = takes_many_rows,
                   .begin_stream = [target](const Problem& p) { return begin_stream(*target, p); }});
    add("spread",
        {.refuses = takes_few_rows, .begin_spread = [target](const Problem& p, const Spread& spread) {
           return begin_spread(*target, p, spread);
         }});
  }
  return list;
}

class Cpu final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  Device device() const override { return Device::cpu; }
  std::span<const Kernel> kernels() const override { return kernels_; }

  std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const override {
    return std::make_unique<const CpuProjection>(w, bias, CpuProjection::Ownership::copied);
  }
  std::unique_ptr<const Projection> project_lent(const View& w, std::span<const float> bias) const override {
    return std::make_unique<const CpuProjection>(w, bias, CpuProjection::Ownership::lent);
  }
  void project_all(std::span<const Projected> all) const override { cpu::project_all(all); }
  void add_weight_gradient(const View& x, const View& y, const MutableView& w,
                           const MutableView& bias) const override {
    cpu::add_weight_gradient(x, y, w, bias);
  }
  void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
              const Rotary& rotary, std::span<const std::int64_t> lengths) const override {
    cpu::rotate(alike, positions, rotary, lengths);
  }
  Memory allocate(std::size_t bytes) const override {
    threads::ReusedMemory memory = threads::take_memory((bytes + sizeof(float) - 1) / sizeof(float));
    const std::size_t held = memory.get_deleter().bytes;
    return {memory.release(), {&give_back, held}};
  }
  void copy(const View& from, const MutableView& into) const override { cpu::copy(from, into); }
  void add(const View& from, const MutableView& into) const override { cpu::add(from, into); }
  void average_heads(const View& from, const MutableView& into) const override {
    cpu::average_heads(from, into);
  }
  void fill(const MutableView& x, float value) const override { cpu::fill(x, value); }
  void merge(const Outputs& into, const Results& other) const override { cpu::merge(into, other); }

 private:
  static void give_back(void* memory, std::size_t bytes) noexcept {
    threads::ReturnMemory{bytes}(static_cast<float*>(memory));
  }

  std::vector<Kernel> kernels_ = make_kernels();
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu& only = *new Cpu;  // never destroyed: threads may be at work when the process ends
  return only;
}

// Which target serves a call: the best that this machine can run, or the one that HEED_TARGET names.

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
