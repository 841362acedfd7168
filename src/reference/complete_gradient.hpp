// SPDX-License-Identifier: Apache-2.0
// The gradients that a kernel could not finish in f32 (S13, G9): it marked them and wrote nothing there. The
// rest keeps its bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/gradient.hpp"

namespace heed::reference {

class GradientCompletion {
 public:
  GradientCompletion(const GradientProblem&, const UnfinishedGradients&);

  // What is left to do, in parts that may run at once: a KV head of a sequence each, and one for bias and
  // sink.
  std::size_t parts() const;
  void run(std::size_t part);

 private:
  struct Entry {
    std::int64_t b, kv_head;
  };

  bool is_unfinished_row(std::int64_t b, std::int64_t h, std::int64_t i) const;
  bool has_left_keys(std::int64_t b, std::int64_t kv_head) const;
  bool has_left(std::int64_t b, std::int64_t kv_head) const;

  void complete(const Entry&);
  void complete_shared();

  void write_element(const MutableView&, const Shape& at, double value) const;
  void write_row(const MutableView&, SumTensor& from, double factor, Shape at) const;
  void write_elements(const std::vector<unsigned char>& left, const MutableView&, SumTensor& from) const;

  const GradientProblem& g_;
  const UnfinishedGradients& left_;
  std::vector<Entry> entries_{};
  bool has_shared_ = false;
  std::optional<GradientNumbers> numbers_{};
  std::optional<GradientSums> sums_{};  // of q, k and v: entries have no element of them in common
};

}  // namespace heed::reference
