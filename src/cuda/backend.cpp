// SPDX-License-Identifier: Apache-2.0
// CUDA as a backend. It attends; layers, caches and copies on the device are refused in so many words.
#include "cuda/backend.hpp"

#include <vector>

#include "cuda/memory.hpp"
#include "cuda/places.hpp"
#include "cuda/run.hpp"

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

Reason refuses_here(Role role, const Problem& p) {
  const Current device(ordinal_of("q", p.inputs.q));
  if (Reason reason = is_not_hopper()) return reason;
  return refuses(role, LoweredCall(p));
}

Kernel kernel_of(const char* name, Role role) {
  return {name, Device::cuda, unavailable, [role](const Problem& p) { return refuses_here(role, p); },
          [role](const Problem& p) { return run_on_stream(role, p); }};
}

Error not_offered(const char* what) {
  return refusal(Error::unsupported, "device: cuda: this backend attends, but does not ", what);
}

class Cuda final : public Backend {
 public:
  const char* name() const override { return "cuda"; }
  Device device() const override { return Device::cuda; }
  std::span<const Kernel> kernels() const override { return kernels_; }

  std::unique_ptr<const Projection> project(const View&, std::span<const float>) const override {
    throw not_offered("project");
  }
  void rotate(const MutableView&, std::span<const std::int64_t>, const Rotary&,
              std::span<const std::int64_t>) const override {
    throw not_offered("rotate");
  }
  Memory allocate(std::size_t bytes) const override { return take_memory(bytes); }
  void copy(const View&, const MutableView&) const override { throw not_offered("copy"); }
  void average_heads(const View&, const MutableView&) const override { throw not_offered("average heads"); }
  void fill(const MutableView&, float) const override { throw not_offered("fill"); }
  void merge(const Outputs&, const Results&) const override { throw not_offered("merge"); }

 private:
  std::vector<Kernel> kernels_{kernel_of("cuda.decode.sm90", Role::decode),
                               kernel_of("cuda.prefill.sm90", Role::prefill),
                               kernel_of("cuda.exact.sm90", Role::exact)};
};

}  // namespace

const Backend* cuda_backend() {
  static const Cuda& only = *new Cuda;  // never destroyed: see backends()
  return &only;
}

}  // namespace heed::cuda
