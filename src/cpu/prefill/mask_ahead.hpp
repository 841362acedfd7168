// SPDX-License-Identifier: Apache-2.0
// What a panel will want of a bias that no other panel reads, asked for while another is worked on. A little
// at a time, or the loads of products wait: of 12 heads of 1024 x 64 in bf16, each with a bias of its own,
// two threads of a Xeon take 1.28 times as long as without it, 1.35 where a panel's products ask for all and
// its weights for nothing, 1.48 where nobody asks, and 1.55 where a strip asks for the next; 16 threads 1.21,
// 1.26, 1.28 and 1.30 (AMX, November 2026).
#pragma once
#include <cstdint>

#include "cpu/tile/coming.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class MaskAhead {
 public:
  MaskAhead() = default;

  // Of these keys in so many steps. Rows of several heads do not lie the same distance apart: for them
  // nothing is asked.
  MaskAhead(const Tensor& mask, const Queries& queries, KeyRange keys, std::int64_t steps) {
    if (queries.group != 1 || mask.stride.dim != 1 || mask.stride.length == 0 || keys.end <= keys.begin)
      return;
    with_type(mask.type, [&](auto type) {
      constexpr std::int64_t bytes = bytes_of_type<type.value>;
      const std::int64_t width = round_up((keys.end - keys.begin) * bytes, line);
      const auto* rows = static_cast<const char*>(mask.data) + row_of(mask, queries(0)).first * bytes;
      touch_ = {{rows + keys.begin * bytes, width, mask.stride.length * bytes}};
      left_ = width / line * queries.count;
    });
    in_step_ = (left_ + steps - 1) / steps;
  }

  void step() {
    const std::int64_t lines = min(in_step_, left_);
    left_ -= lines;
    touch_.lines(lines);
  }

 private:
  static constexpr std::int64_t line = 64;  // bytes

  Touch<S> touch_{};
  std::int64_t in_step_ = 0, left_ = 0;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
