// SPDX-License-Identifier: Apache-2.0
#include "cuda/projection/projection.hpp"

#include <cuda_runtime_api.h>

#include "cuda/lower.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/workspace.hpp"

namespace heed::cuda {
namespace {

TokenRows rows_of(const View& x) { return {lower(x), x.shape.dim, x.shape.length}; }

Memory uploaded(const void* from, std::size_t bytes) {
  Memory on_device = take_memory(bytes);
  check(cudaMemcpy(on_device.get(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return on_device;
}

// On the device that was current when it was made.
class OnDevice final : public Projection {
 public:
  OnDevice(const View& w, std::span<const float> bias)
      : out_(w.shape.length),
        in_(w.shape.dim),
        type_(problem::type_of(w.dtype)),
        w_(uploaded(w.data, static_cast<std::size_t>(out_ * in_) * bytes_of(w.dtype))),
        bias_(bias.empty() ? Memory() : uploaded(bias.data(), bias.size_bytes())) {}

  void operator()(const View& x, const MutableView& y) const override {
    const Current device(ordinal_of("x", x));
    launch(LinearMap{.x = rows_of(x),
                     .y = rows_of(y),
                     .rows = x.shape.batch * x.shape.length,
                     .w = w_.get(),
                     .w_type = type_,
                     .in = in_,
                     .out = out_,
                     .bias = static_cast<const float*>(bias_.get())},
           nullptr);
  }

 private:
  std::int64_t out_, in_;
  Type type_;
  Memory w_, bias_;
};

}  // namespace

std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) {
  return std::make_unique<OnDevice>(w, bias);
}

void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias) {
  const Current device(ordinal_of("x", x));
  launch(WeightGradient{.x = rows_of(x),
                        .y = rows_of(y),
                        .rows = x.shape.batch * x.shape.length,
                        .in = w.shape.dim,
                        .out = w.shape.length,
                        .w = static_cast<float*>(w.data),
                        .bias = static_cast<float*>(bias.data)},
         nullptr);
}

}  // namespace heed::cuda
