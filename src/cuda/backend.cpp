// SPDX-License-Identifier: Apache-2.0
// CUDA as a backend.
#include "cuda/backend.hpp"

#include <vector>

#include "cuda/projection/projection.hpp"
#include "cuda/run.hpp"
#include "cuda/runtime/arrays.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/memory.hpp"

namespace heed::cuda {
namespace {

bool run_on_stream(Role role, const Problem& p) {
  const Current device(ordinal_of(p));
  const LoweredCall lowered(p);
  const auto stream = static_cast<Stream>(p.options.stream);
  const CallWorkspace workspace(workspace_bytes(role, lowered), stream);
  run(role, lowered, workspace.get(), stream);
  return false;
}

UnfinishedGradients run_on_stream(BackwardRole role, const GradientProblem& g) {
  const Current device(ordinal_of(g));
  const LoweredGradients lowered(g);
  const auto stream = static_cast<Stream>(g.forward.options.stream);
  const CallWorkspace workspace(workspace_bytes(role, lowered), stream);
  run(role, lowered, workspace.get(), stream);
  return {};
}

Reason refuses_here(BackwardRole role, const GradientProblem& g) {
  const Current device(ordinal_of("q", g.forward.inputs.q));
  if (Reason reason = wants_another_device(role)) return reason;
  return refuses(role, LoweredGradients(g));
}

Reason refuses_here(Role role, const Problem& p) {
  const Current device(ordinal_of("q", p.inputs.q));
  if (Reason reason = wants_another_device(role)) return reason;
  return refuses(role, LoweredCall(p));
}

Kernel kernel_of(const char* name, Role role) {
  return {.name = name,
          .device = Device::cuda,
          .unavailable = unavailable,
          .refuses = [role](const Problem& p) { return refuses_here(role, p); },
          .attend = [role](const Problem& p) { return run_on_stream(role, p); }};
}

// One that also has gradients, or has nothing else.
Kernel with_gradients(Kernel kernel, BackwardRole backward) {
  kernel.refuses_backward = [backward](const GradientProblem& g) { return refuses_here(backward, g); };
  kernel.backward = [backward](const GradientProblem& g) { return run_on_stream(backward, g); };
  return kernel;
}
Kernel kernel_of(const char* name, Role role, BackwardRole backward) {
  return with_gradients(kernel_of(name, role), backward);
}
Kernel kernel_of(const char* name, BackwardRole backward) {
  return with_gradients({.name = name, .device = Device::cuda, .unavailable = unavailable}, backward);
}

class Cuda final : public Backend {
 public:
  const char* name() const override { return "cuda"; }
  Device device() const override { return Device::cuda; }
  std::span<const Kernel> kernels() const override { return kernels_; }

  std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const override {
    return cuda::project(w, bias);
  }
  void add_weight_gradient(const View& x, const View& y, const MutableView& w,
                           const MutableView& bias) const override {
    cuda::add_weight_gradient(x, y, w, bias);
  }
  void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
              const Rotary& rotary, std::span<const std::int64_t> lengths) const override {
    for (const MutableView& x : alike) cuda::rotate(x, positions, rotary, lengths);
  }
  Memory allocate(std::size_t bytes) const override { return take_memory(bytes); }
  std::unique_ptr<backend::DevicePages> make_pages(std::int64_t bytes) const override {
    return cuda::make_pages(bytes);
  }
  void copy(const View& from, const MutableView& into) const override { cuda::copy(from, into); }
  void add(const View& from, const MutableView& into) const override { cuda::add(from, into); }
  void average_heads(const View& from, const MutableView& into) const override {
    cuda::average_heads(from, into);
  }
  void fill(const MutableView& x, float value) const override { cuda::fill(x, value); }
  void merge(const Outputs& into, const Results& other) const override { cuda::merge(into, other); }

 private:
  std::vector<Kernel> kernels_{kernel_of("cuda.decode.sm90", Role::decode),
                               kernel_of("cuda.split.sm80", Role::split),
                               kernel_of("cuda.prefill.sm90", Role::prefill),
                               kernel_of("cuda.backward.sm90", BackwardRole::hopper),
                               kernel_of("cuda.general.sm80", Role::general, BackwardRole::general),
                               kernel_of("cuda.exact.sm80", Role::exact, BackwardRole::exact)};
};

}  // namespace

const Backend& cuda_backend() {
  static const Cuda& only = *new Cuda;  // never destroyed: see backends()
  return only;
}

}  // namespace heed::cuda
