// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: everything it offers to the rest of the library, in one place.
#include "cpu/backend.hpp"

#include <vector>

#include "cpu/arrays.hpp"
#include "cpu/drivers.hpp"
#include "cpu/projection/driver.hpp"
#include "threads/reused_memory.hpp"

namespace heed::cpu {
namespace {

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> list;
  for (const Target* target : targets()) {
    const auto unavailable_here = [target] { return unavailable(*target); };
    list.push_back({std::string("cpu.decode.") + target->name, Device::cpu, unavailable_here,
                    [target](const Problem& p) { return decode_refuses(*target, p); },
                    [target](const Problem& p) { return decode(*target, p); }});
    list.push_back({std::string("cpu.prefill.") + target->name, Device::cpu, unavailable_here,
                    [target](const Problem& p) { return prefill_refuses(*target, p); },
                    [target](const Problem& p) { return prefill(*target, p); }});
  }
  return list;
}

std::vector<GradientKernel> make_gradient_kernels() {
  std::vector<GradientKernel> list;
  for (const Target* target : targets())
    list.push_back({std::string("cpu.backward.") + target->name, Device::cpu,
                    [target] { return unavailable(*target); },
                    [target](const GradientProblem& g) { return gradient_refuses(*target, g); },
                    [target](const GradientProblem& g) { return gradient(*target, g); }});
  return list;
}

std::vector<StreamKernel> make_stream_kernels() {
  std::vector<StreamKernel> list;
  for (const Target* target : targets())
    list.push_back({std::string("cpu.stream.") + target->name, Device::cpu,
                    [target] { return unavailable(*target); },
                    [target](const Problem& p) { return prefill_refuses(*target, p); },
                    [target](const Problem& p) { return begin_stream(*target, p); }});
  return list;
}

std::vector<SpreadKernel> make_spread_kernels() {
  std::vector<SpreadKernel> list;
  for (const Target* target : targets())
    list.push_back(
        {std::string("cpu.spread.") + target->name, Device::cpu, [target] { return unavailable(*target); },
         [target](const Problem& p) { return decode_refuses(*target, p); },
         [target](const Problem& p, const Spread& spread) { return begin_spread(*target, p, spread); }});
  return list;
}

class Cpu final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  Device device() const override { return Device::cpu; }
  std::span<const Kernel> kernels() const override { return kernels_; }
  std::span<const GradientKernel> gradient_kernels() const override { return gradient_kernels_; }
  std::span<const StreamKernel> stream_kernels() const override { return stream_kernels_; }
  std::span<const SpreadKernel> spread_kernels() const override { return spread_kernels_; }

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
  std::vector<GradientKernel> gradient_kernels_ = make_gradient_kernels();
  std::vector<StreamKernel> stream_kernels_ = make_stream_kernels();
  std::vector<SpreadKernel> spread_kernels_ = make_spread_kernels();
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu& only = *new Cpu;  // never destroyed: threads may be at work when the process ends
  return only;
}

}  // namespace heed::cpu
