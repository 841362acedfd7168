// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/arrays.hpp"
#include "cuda/launch/arrays.hpp"
#include "cuda/lower.hpp"
#include "cuda/memory.hpp"
#include "cuda/places.hpp"

namespace heed::cuda {
namespace {

Memory brought(const void* from, std::size_t bytes) {
  Memory there = take_memory(bytes);
  check(cudaMemcpy(there.get(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return there;
}

// On the device that was current when it was made.
class OnDevice final : public Projection {
 public:
  OnDevice(const View& w, std::span<const float> bias)
      : out_(w.shape.length),
        in_(w.shape.dim),
        type_(type_of(w.dtype)),
        w_(brought(w.data, static_cast<std::size_t>(out_ * in_) * bytes_of(w.dtype))),
        bias_(bias.empty() ? Memory() : brought(bias.data(), bias.size_bytes())) {}

  void operator()(const View& x, const MutableView& y) const override {
    const Current device(ordinal_of("x", x));
    launch_linear_map({.x = lower(x),
                       .y = lower(View(y)),
                       .x_dim = x.shape.dim,
                       .y_dim = y.shape.dim,
                       .length = x.shape.length,
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

}  // namespace heed::cuda
