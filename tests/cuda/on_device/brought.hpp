// SPDX-License-Identifier: Apache-2.0
// A call's arguments on the device: copies of what it points to, and what was written back from there.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "cases/call.hpp"

namespace heed::cuda::test {

inline void expect_success(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

struct FreeOnDevice {
  void operator()(void* p) const { cudaFree(p); }
};
using OnDeviceBytes = std::unique_ptr<void, FreeOnDevice>;

class Brought {
 public:
  View view(const View& x) { return moved<View>(x, {}); }
  MutableView view(const MutableView& x) { return moved<MutableView>(x, x.data); }
  BoolView view(const BoolView& x) {
    const auto bytes = static_cast<std::size_t>(x.shape.elements());
    return {static_cast<const bool*>(copied(x.data, bytes)), x.shape, bhsd(x.shape), Device::cuda};
  }
  template <class AnyView>
  Optional<AnyView> view(const std::optional<AnyView>& x) {
    return x ? Optional<AnyView>(view(*x)) : Optional<AnyView>();
  }
  Inputs inputs(Inputs x) {
    x.q = view(x.q), x.k = view(x.k), x.v = view(x.v);
    return x;
  }
  Outputs outputs(Outputs x) {
    x.out = view(x.out), x.weights = view(x.weights), x.log_sum_exp = view(x.log_sum_exp);
    x.scores.into = view(x.scores.into);
    return x;
  }
  enum class Masks : std::uint8_t { on_the_device, where_they_are };
  Options options(Options x, Masks masks = Masks::on_the_device) {
    x.bias = view(x.bias), x.sink = view(x.sink);
    for (Mask& mask : x.masks)
      std::visit(
          [&](auto& m) {
            if constexpr (requires { m.where; })
              if (masks == Masks::on_the_device) m.where = view(m.where);
          },
          mask);
    return x;
  }

  // Waits, and brings the outputs back.
  void fetch() const {
    expect_success(cudaDeviceSynchronize());
    for (const auto& [from, to, bytes] : written_)
      expect_success(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }

 private:
  struct Written {
    void *from, *to;
    std::size_t bytes;
  };

  // From the first element to the last.
  static std::size_t reach(const Shape& n, const Strides& s) {
    if (n.elements() == 0) return 0;
    return static_cast<std::size_t>((n.batch - 1) * s.batch + (n.heads - 1) * s.heads +
                                    (n.length - 1) * s.length + (n.dim - 1) * s.dim + 1);
  }
  template <class AnyView>
  AnyView moved(AnyView x, void* back_to) {
    const std::size_t bytes = reach(x.shape, x.stride) * bytes_of(x.dtype);
    void* const there = copied(x.data, bytes);
    if (back_to) written_.push_back({there, back_to, bytes});
    x.data = there;
    x.device = Device::cuda;
    return x;
  }
  void* copied(const void* from, std::size_t bytes) {
    void* there = nullptr;
    expect_success(cudaMalloc(&there, bytes + 1));
    kept_.emplace_back(there);
    if (bytes > 0) expect_success(cudaMemcpy(there, from, bytes, cudaMemcpyHostToDevice));
    return there;
  }

  std::vector<OnDeviceBytes> kept_{};
  std::vector<Written> written_{};
};

}  // namespace heed::cuda::test
