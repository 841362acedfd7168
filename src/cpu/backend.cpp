// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: everything it offers to the rest of the library, in one place.
#include "cpu/backend.hpp"

#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/projection/driver.hpp"
#include "threads/reused_memory.hpp"

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
    threads::ReusedMemory kept = threads::take_memory((bytes + sizeof(float) - 1) / sizeof(float));
    const std::size_t held = kept.get_deleter().bytes;
    return {kept.release(), {&give_back, held}};
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

}  // namespace heed::cpu
