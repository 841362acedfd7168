// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU, over copies of the host's numbers. Memory is exactly as long as the strides need, and
// the workspace is filled with NaN, so that what reads too far or reads what nobody wrote is seen.
#include "kernels.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>

#include "cuda/backend.hpp"

namespace heed::cuda::test {
namespace {

struct Free {
  void operator()(std::byte* p) const { cudaFree(p); }
};
using DeviceBytes = std::unique_ptr<std::byte, Free>;

DeviceBytes allocate(std::int64_t bytes) {
  void* p = nullptr;
  heed::cuda::check(cudaMalloc(&p, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 16))),
                    "cudaMalloc");
  return DeviceBytes(static_cast<std::byte*>(p));
}

std::int64_t reach(const Shape& s, const Strides& stride) {
  if (s.elements() == 0) return 0;
  return (s.batch - 1) * stride.batch + (s.heads - 1) * stride.heads + (s.length - 1) * stride.length +
         (s.dim - 1) * stride.dim + 1;
}

// Copies of what a call points to; what was written goes back when it is asked for.
class Copies {
 public:
  // All but the pages of a cache.
  void bring_call(const Problem& p, LoweredCall& lowered) {
    Call& c = lowered.call;
    bring(c.q, p.inputs.q);
    if (!p.reading) bring(c.k, p.inputs.k), bring(c.v, p.inputs.v);
    // A broadcast axis has stride 0 by now: one entry.
    if (p.options.bias) bring(c.bias, *p.options.bias);
    if (p.options.sink) bring(c.sink, *p.options.sink);
    bring_back(c.out, p.outputs.out);
    if (p.outputs.weights) bring_back(c.weights, *p.outputs.weights);
    if (p.outputs.log_sum_exp) bring_back(c.log_sum_exp, *p.outputs.log_sum_exp);
    if (p.outputs.scores.into) bring_back(c.scores, *p.outputs.scores.into);
    std::size_t n = 0;
    for (const Mask& mask : p.options.masks)
      std::visit(
          [&](const auto& m) {
            if constexpr (requires { m.where; }) {
              lowered.masks_to_bring[n] = 0;
              lowered.lowered.masks[n++].where.data =
                  copy(m.where.data, reach(m.where.shape, m.where.stride));
            }
          },
          mask);
  }

  void fetch() const {
    for (const auto& [from, to, bytes] : written_)
      heed::cuda::check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost),
                        "cudaMemcpy");
  }

  void* copy(const void* from, std::int64_t bytes) {
    kept_.push_back(allocate(bytes));
    heed::cuda::check(
        cudaMemcpy(kept_.back().get(), from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    return kept_.back().get();
  }
  // At the same distance from a multiple of 16 bytes.
  void bring(Tensor& tensor, const View& view) {
    const auto off = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data) % 16);
    const std::int64_t bytes =
        reach(view.shape, view.stride) * static_cast<std::int64_t>(bytes_of(view.dtype));
    kept_.push_back(allocate(bytes + off));
    tensor.data = kept_.back().get() + off;
    heed::cuda::check(cudaMemcpy(const_cast<void*>(tensor.data), view.data, static_cast<std::size_t>(bytes),
                                 cudaMemcpyHostToDevice),
                      "cudaMemcpy");
  }
  void bring_back(Tensor& tensor, const MutableView& view) {
    bring(tensor, View(view));
    written_.push_back({tensor.data, view.data,
                        reach(view.shape, view.stride) * static_cast<std::int64_t>(bytes_of(view.dtype))});
  }

 private:
  struct Written {
    const void* from;
    void* to;
    std::int64_t bytes;
  };

  std::vector<DeviceBytes> kept_{};
  std::vector<Written> written_{};
};

class OnDevice {
 public:
  explicit OnDevice(const Problem& p) : problem_(p), lowered(problem_) {
    copies_.bring_call(p, lowered);
    if (p.reading) bring_pages();
  }
  void fetch() const { copies_.fetch(); }

 private:
  // Sequences share there what they share here.
  void bring_pages() {
    const cache::PageLayout& layout = lowered.call.layout;
    std::map<const unsigned char*, const unsigned char*> brought;
    for (cache::PagedSequence& s : problem_.cached) {
      std::vector<const unsigned char*> table;
      for (std::int64_t n = 0; n * layout.page_size < s.length; ++n) {
        const unsigned char*& page = brought[s.table[n]];
        if (!page) page = static_cast<const unsigned char*>(copies_.copy(s.table[n], layout.page_bytes()));
        table.push_back(page);
      }
      tables_.push_back(std::move(table));
      s.table = tables_.back().data();
    }
  }

  Problem problem_;  // its pages are those of the device
  Copies copies_{};
  std::vector<std::vector<const unsigned char*>> tables_{};

 public:
  LoweredCall lowered;
};

class GradientsOnDevice {
 public:
  explicit GradientsOnDevice(const GradientProblem& g) : lowered(g) {
    GradientCall& call = lowered.call;
    copies_.bring_call(g.forward, lowered.forward);
    copies_.bring(call.out_gradient, g.out_gradient);
    if (g.log_sum_exp_gradient) copies_.bring(call.log_sum_exp_gradient, *g.log_sum_exp_gradient);
    if (g.q) copies_.bring_back(call.q, *g.given.q);
    if (g.k) copies_.bring_back(call.k, *g.given.k);
    if (g.v) copies_.bring_back(call.v, *g.given.v);
    if (g.bias) copies_.bring_back(call.bias.tensor, *g.given.bias);
    if (g.sink) copies_.bring_back(call.sink.tensor, *g.given.sink);
    call.forward = lowered.forward.call;
  }
  void fetch() const { copies_.fetch(); }

 private:
  Copies copies_{};

 public:
  LoweredGradients lowered;
};

Role role_of(const std::string& kernel) {
  return kernel == "cuda.decode"    ? Role::decode
         : kernel == "cuda.prefill" ? Role::prefill
         : kernel == "cuda.split"   ? Role::split
         : kernel == "cuda.general" ? Role::general
                                    : Role::exact;
}

// One for all calls, as a program would have it: counters stay 0, the rest is whatever was left there.
Workspace workspace(std::int64_t bytes) {
  static DeviceBytes memory;
  static std::int64_t size = 0;
  if (bytes > size) {
    size = 2 * bytes;
    memory = allocate(size);
    heed::cuda::check(cudaMemset(memory.get(), 0xff, static_cast<std::size_t>(size)), "cudaMemset");
    heed::cuda::check(cudaMemset(memory.get(), 0, Workspace::counter_bytes), "cudaMemset");
  }
  return {memory.get(), size};
}

}  // namespace

bool is_emulated() { return false; }

std::vector<std::string> kernel_names() {
  std::vector<std::string> names{"cuda.decode", "cuda.prefill", "cuda.general", "cuda.exact"};
  std::erase_if(names, [](const std::string& name) { return bool(wants_another_device(role_of(name))); });
  return names;
}

bool run(const std::string& kernel, const Problem& problem, Cut cut) {
  const Role role = role_of(kernel);
  OnDevice device(problem);
  if (wants_another_device(role) || refuses(role, device.lowered)) return false;
  heed::cuda::run(role, device.lowered, workspace(workspace_bytes(role, device.lowered)), nullptr,
                  cut == Cut::apart      ? heed::cuda::Cut::apart
                  : cut == Cut::together ? heed::cuda::Cut::together
                                         : heed::cuda::Cut::by_the_plan);
  heed::cuda::check(cudaDeviceSynchronize(), kernel.c_str());
  device.fetch();
  return true;
}

std::vector<std::string> backward_kernel_names() { return {"cuda.backward", "cuda.general", "cuda.exact"}; }

bool run_backward(const std::string& kernel, const GradientProblem& problem) {
  const BackwardRole role = kernel == "cuda.backward"  ? BackwardRole::hopper
                            : kernel == "cuda.general" ? BackwardRole::general
                                                       : BackwardRole::exact;
  GradientsOnDevice device(problem);
  if (wants_another_device(role) || refuses(role, device.lowered)) return false;
  heed::cuda::run(role, device.lowered, workspace(workspace_bytes(role, device.lowered)), nullptr);
  heed::cuda::check(cudaDeviceSynchronize(), kernel.c_str());
  device.fetch();
  return true;
}

}  // namespace heed::cuda::test
