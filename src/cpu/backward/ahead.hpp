// SPDX-License-Identifier: Apache-2.0
// Memory that will be wanted soon, asked for a little at a time between products: all at once would keep
// their own loads waiting.
#pragma once
#include <cstdint>

namespace heed::cpu::HEED_THIS_TARGET {

class Ahead {
 public:
  Ahead() = default;
  // Floats that should be on their way after so many times.
  Ahead(const float* from, std::int64_t floats, std::int64_t times)
      : at_(from), end_(from + floats), step_((floats / times / line + 1) * line) {}

  bool is_over() const { return at_ >= end_; }

  template <class S>
  void touch() {
    const float* const end = end_ - at_ > step_ ? at_ + step_ : end_;
    for (; at_ < end; at_ += line) S::prefetch(at_);
  }

 private:
  static constexpr std::int64_t line = 16;  // floats

  const float *at_ = nullptr, *end_ = nullptr;
  std::int64_t step_ = 0;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
