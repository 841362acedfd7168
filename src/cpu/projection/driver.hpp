// SPDX-License-Identifier: Apache-2.0
// y = x * W^T + b on the CPU, with W packed once into a micro-kernel's panels, or read where it lies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "cpu/isa/target.hpp"
#include "heed/tensor.hpp"
#include "threads/memory.hpp"

namespace heed::cpu {

// W (out, in) as one target's kernels read it: panels of `panel_rows` outputs, each (depth / together,
// panel_rows, together) with `depth_together` neighbouring inputs together; zeros fill up the last panel and
// the inputs. In its own dtype: a single row of x reads every weight once, so 16 bits take half the time.
struct Panels {
  Panels(const Target&, std::int64_t out, std::int64_t in, DType);

  // Where the first input of an output lies, and how far behind it another one, in elements.
  std::int64_t first_of(std::int64_t output) const {
    const std::int64_t outputs = target->panel_rows;
    return output / outputs * outputs * depth + output % outputs * target->depth_together;
  }
  std::int64_t further(std::int64_t input) const {
    const std::int64_t within = input & (target->depth_together - 1);
    return (input - within) * target->panel_rows + within;
  }

  const Target* target;
  std::int64_t depth;
  threads::ReusedMemory memory;  // on a 64-byte line: a vector across two lines would be read twice
};

// W is packed for matrix instructions where it is bf16 and the machine has some, else for vectors; and for
// vectors as well once an x was not bf16. Where W is lent, kernels for vectors read it as it lies, and
// nothing is packed for them: packing a stretch as they go costs less than writing panels and reading them
// again.
class CpuProjection final : public Projection {
 public:
  // lent: W outlives the projection, and does not change.
  enum class Ownership : std::uint8_t { copied, lent };

  CpuProjection(const View& w, std::span<const float> bias, Ownership);

  void operator()(const View& x, const MutableView& y) const override;
  bool has_matrix_instructions_for(DType x) const override { return target_->only_bf16 && x == DType::bf16; }

  const Target& target_for(DType x) const;
  LinearMap map_for(DType x) const;  // all but its y

  const std::int64_t out, in;
  const DType dtype;
  const std::vector<float> bias;

 private:
  const Target* target_;            // for an x in W's own dtype
  std::optional<View> lent_{};      // W as it lies
  std::optional<Panels> packed_{};  // for that target
  mutable std::once_flag asked_for_vectors_{};
  mutable std::optional<Panels> for_vectors_{};
};

// Neighbours of one x that one target multiplies are one run of tasks, over x packed once.
void project_all(std::span<const Projected>);

// w (1, 1, out, in) += y^T * x, and bias, where its data is given, += y summed; both f32, row after row.
void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias);

}  // namespace heed::cpu
