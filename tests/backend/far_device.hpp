// SPDX-License-Identifier: Apache-2.0
// A device for tests. What lies on it is memory of this process at an address that nobody can read, so that
// whatever touches it without its backend crashes. Its backend lets the CPU work on it where it really is.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "api/plan.hpp"
#include "backend/backend.hpp"
#include "cpu/backend.hpp"

namespace heed::test {

constexpr std::uintptr_t far_away = std::uintptr_t{1} << 52;  // beyond the addresses of any process

template <class Memory>
BasicView<Memory> far(BasicView<Memory> x) {
  x.data = reinterpret_cast<Memory*>(reinterpret_cast<std::uintptr_t>(x.data) + far_away);
  x.device = Device::cuda;
  return x;
}
template <class Memory>
BasicView<Memory> near(BasicView<Memory> x) {
  if (x.device == Device::cpu) return x;
  x.data = reinterpret_cast<Memory*>(reinterpret_cast<std::uintptr_t>(x.data) - far_away);
  x.device = Device::cpu;
  return x;
}
template <class AnyView>
Optional<AnyView> near(const std::optional<AnyView>& x) {
  return x ? Optional<AnyView>(near(*x)) : Optional<AnyView>();
}

inline Problem near(Problem p) {
  p.inputs.q = near(p.inputs.q);
  p.inputs.k = near(p.inputs.k);
  p.inputs.v = near(p.inputs.v);
  p.outputs.out = near(p.outputs.out);
  p.outputs.weights = near(p.outputs.weights);
  p.outputs.log_sum_exp = near(p.outputs.log_sum_exp);
  p.outputs.scores.into = near(p.outputs.scores.into);
  p.bias = near(p.bias);
  p.sink = near(p.sink);
  p.options.kernel.clear();
  return p;
}

inline Gradients near(Gradients g) {
  g.out = near(g.out);
  g.log_sum_exp = near(g.log_sum_exp);
  g.q = near(g.q);
  g.k = near(g.k);
  g.v = near(g.v);
  g.bias = near(g.bias);
  g.sink = near(g.sink);
  return g;
}

class FarProjection : public Projection {
 public:
  explicit FarProjection(std::unique_ptr<const Projection> here) : here_(std::move(here)) {}
  void operator()(const View& x, const MutableView& y) const override { (*here_)(near(x), near(y)); }
  bool has_matrix_instructions_for(DType x) const override { return here_->has_matrix_instructions_for(x); }

 private:
  std::unique_ptr<const Projection> here_;
};

class FarDevice : public Backend {
 public:
  FarDevice() : Backend("far", Device::cuda, kernels_of(*this)) {}

  std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const override {
    return std::make_unique<FarProjection>(cpu().project(w, bias));
  }
  void add_weight_gradient(const View& x, const View& y, const MutableView& w,
                           const MutableView& bias) const override {
    cpu().add_weight_gradient(near(x), near(y), near(w), near(bias));
  }
  void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
              const Rotary& rotary, std::span<const std::int64_t> lengths) const override {
    for (const MutableView& x : alike) cpu().rotate({{near(x)}}, positions, rotary, lengths);
  }
  Memory allocate(std::size_t bytes) const override {
    Memory here = cpu().allocate(bytes);
    const std::size_t held = here.get_deleter().bytes;
    return {moved(here.release(), far_away), {&give_back, held}};
  }
  void copy(const View& from, const MutableView& into) const override { cpu().copy(near(from), near(into)); }
  void add(const View& from, const MutableView& into) const override { cpu().add(near(from), near(into)); }
  void average_heads(const View& from, const MutableView& into) const override {
    cpu().average_heads(near(from), near(into));
  }
  void fill(const MutableView& x, float value) const override { cpu().fill(near(x), value); }
  void merge(const Outputs& into, const Results& other) const override {
    cpu().merge({.out = near(into.out), .log_sum_exp = near(into.log_sum_exp)},
                {.out = near(other.out), .log_sum_exp = near(other.log_sum_exp)});
  }

  std::function<Reason(const Problem&)> refuses = [](const Problem&) { return Reason(); };

 private:
  static const Backend& cpu() { return cpu::cpu_backend(); }
  static void* moved(void* memory, std::uintptr_t by) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) + by);
  }
  static void give_back(void* memory, std::size_t bytes) noexcept {
    static const auto to_cpu = cpu().allocate(0).get_deleter().give_back;
    to_cpu(moved(memory, -far_away), bytes);
  }

  static std::vector<Kernel> kernels_of(const FarDevice& far) {
    return {{.name = "far.any",
             .device = Device::cuda,
             .unavailable = [] { return Reason(); },
             .refuses = [&far](const Problem& p) { return far.refuses(p); },
             .attend =
                 [](const Problem& p) {
                   const Problem here = near(p);
                   api::run(api::choose(Work::attention, here), here);
                   return false;
                 }},
            {.name = "far.backward",
             .device = Device::cuda,
             .unavailable = [] { return Reason(); },
             .refuses_backward = [](const GradientProblem&) { return Reason(); },
             .backward =
                 [](const GradientProblem& g) {
                   const Problem here = near(g.forward);
                   Options options = here.options;
                   options.bias = near(options.bias);
                   options.sink = near(options.sink);
                   attention_backward(here.inputs, {near(g.out), near(g.log_sum_exp)}, near(g.given),
                                      options);
                   return RepairMarks();
                 }}};
  }
};

// The device is there while this lives.
class WithFarDevice {
 public:
  WithFarDevice() { backends().push_back(&device); }
  ~WithFarDevice() { backends().pop_back(); }
  WithFarDevice(const WithFarDevice&) = delete;
  WithFarDevice& operator=(const WithFarDevice&) = delete;

  FarDevice device{};
};

}  // namespace heed::test
