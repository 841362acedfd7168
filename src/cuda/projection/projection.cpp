// SPDX-License-Identifier: Apache-2.0
#include "cuda/projection/projection.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>

#include "cuda/lower.hpp"
#include "cuda/runtime/arrays.hpp"
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

std::int64_t in_pieces(std::int64_t n) { return (n + 7) / 8 * 8; }

// Rows of this width side by side, zeros behind what x has: as matrix units read them.
struct PackedRows {
  Memory memory;
  TokenRows rows;

  explicit PackedRows(const View& x) {
    const std::int64_t all = x.shape.batch * x.shape.length, in = x.shape.heads * x.shape.dim,
                       row = in_pieces(in);
    const auto bytes = static_cast<std::size_t>(all * row) * bytes_of(x.dtype);
    memory = take_memory(std::max<std::size_t>(bytes, 1));
    check(cudaMemsetAsync(memory.get(), 0, bytes, nullptr), "cudaMemsetAsync");
    copy(x,
         {memory.get(), x.shape, Strides{x.shape.length * row, x.shape.dim, row, 1}, x.dtype, Device::cuda});
    rows = rows_of({memory.get(), {x.shape.batch, 1, x.shape.length, row}, x.dtype, Device::cuda});
  }
};

// A matrix on a device: that where it lies, or that was current when it was made.
class OnDevice final : public Projection {
 public:
  OnDevice(const View& w, std::span<const float> bias)
      : out_(w.shape.length),
        in_(w.shape.dim),
        type_(problem::type_of(w.dtype)),
        ordinal_(device_facts().ordinal),
        bias_(bias.empty() ? Memory() : uploaded(bias.data(), bias.size_bytes())),
        own_(uploaded(w.data, static_cast<std::size_t>(out_ * in_) * bytes_of(w.dtype))) {
    lend({own_.get(), w.shape, w.dtype, Device::cuda});
  }
  // Of the device's memory.
  OnDevice(const View& w, const Optional<View>& bias)
      : out_(w.shape.length),
        in_(w.shape.dim),
        type_(problem::type_of(w.dtype)),
        ordinal_(device_facts().ordinal) {
    lend(w);
    if (!bias) return;
    bias_ = take_memory(static_cast<std::size_t>(out_) * sizeof(float));
    copy(*bias, {bias_.get(), bias->shape, DType::f32, Device::cuda});
  }

  void operator()(const View& x, const MutableView& y) const override { project_all({{{*this, x, y}}}); }
  bool has_matrix_instructions_for(DType x) const override {
    return is_for_matrix_units(type_, problem::type_of(x));
  }

  // Rows on that device.
  void check_place(int ordinal) const {
    if (ordinal != ordinal_)
      throw refusal(Error::device, "x.data: it lies on CUDA device ", std::int64_t{ordinal},
                    ", the weights on ", std::int64_t{ordinal_});
  }

  LinearMap map_of(const TokenRows& x, std::int64_t rows, const MutableView& y) const {
    const TokenRows to = rows_of(y);
    return {.x = x,
            .y = to,
            .rows = rows,
            .w = w_,
            .w_type = type_,
            .w_row = row_,
            .w_step = step_,
            .in = is_for_matrix_units(type_, x.tensor.type) ? in_pieces(in_) : in_,
            .out = out_,
            .bias = static_cast<const float*>(bias_.get()),
            .y_has_pairs = has_pairs(to, out_)};
  }

 private:
  // Reads w where it lies, unless matrix units could not.
  void lend(const View& w) {
    w_ = w.data, row_ = w.stride.length, step_ = w.stride.dim;
    if (type_ == Type::f32 || has_pieces(rows_of(w), in_)) return;
    PackedRows packed(w);
    w_ = packed.memory.get(), row_ = in_pieces(in_), step_ = 1;
    own_ = std::move(packed.memory);
  }

  std::int64_t out_, in_;
  Type type_;
  int ordinal_;
  Memory bias_, own_;
  const void* w_ = nullptr;
  std::int64_t row_ = 0, step_ = 1;
};

// Whether one launch may do both.
bool is_together(const Projected& a, const Projected& b) {
  const bool has_same_x =
      a.x.data == b.x.data && a.x.shape == b.x.shape && a.x.stride == b.x.stride && a.x.dtype == b.x.dtype;
  return has_same_x &&
         a.by.has_matrix_instructions_for(a.x.dtype) == b.by.has_matrix_instructions_for(b.x.dtype);
}

// What one map of a launch needs at most; maps are done one after the other.
Memory chains_of(const LinearMaps& maps) {
  const int multiprocessors = device_facts().multiprocessors;
  std::int64_t floats = 0;
  for (int n = 0; n < maps.count; ++n) {
    const LinearMap& m = maps.map[n];
    if (!is_for_matrix_units(m.w_type, m.x.tensor.type) && kernel_in_f32(m, multiprocessors) == InF32::chains)
      floats = std::max(floats, chain_floats(m));
  }
  return floats > 0 ? take_memory(static_cast<std::size_t>(floats) * sizeof(float)) : Memory();
}

}  // namespace

std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) {
  return std::make_unique<OnDevice>(w, bias);
}

std::unique_ptr<const Projection> project_lent(const View& w, const Optional<View>& bias) {
  const Current device(ordinal_of("w", w));
  return std::make_unique<OnDevice>(w, bias);
}

void project_all(std::span<const Projected> all) {
  while (!all.empty()) {
    const Projected& first = all.front();
    const View& x = first.x;
    const int ordinal = ordinal_of("x", x);
    const Current device(ordinal);
    TokenRows rows = rows_of(x);
    std::optional<PackedRows> packed;
    if (first.by.has_matrix_instructions_for(x.dtype) && !has_pieces(rows, x.shape.heads * x.shape.dim))
      rows = packed.emplace(x).rows;
    LinearMaps maps{};
    for (const Projected& each : all) {
      if (maps.count == LinearMaps::max || !is_together(first, each)) break;
      const auto& by = static_cast<const OnDevice&>(each.by);
      if (x.shape.elements() > 0) by.check_place(ordinal);
      maps.map[maps.count++] = by.map_of(rows, x.shape.batch * x.shape.length, each.y);
    }
    const Memory chains = chains_of(maps);
    maps.chains = static_cast<float*>(chains.get());
    launch(maps, nullptr);
    all = all.subspan(static_cast<std::size_t>(maps.count));
  }
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
