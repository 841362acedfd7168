// SPDX-License-Identifier: Apache-2.0
// What attention() and explain() are asked: queries, and keys and values as arrays, packed or in a cache.
#pragma once
#include <span>

#include "choices.hpp"

namespace heed::python {

class Question {
 public:
  Question(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords,
           Caller caller = Caller::attention);
  // Of one rank's share of a call with so many queries and keys, which masks speak of.
  struct Whole {
    std::int64_t queries, keys;
    Caller caller = Caller::ranks;
  };
  Question(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords, const Whole& whole);
  // Over a cache that has a part of sequences of these lengths.
  Question(nb::handle q, const KvCache& part, std::span<const std::int64_t> lengths,
           const nb::kwargs& keywords);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  const Tensor& q() const { return q_; }
  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }
  const Inputs& inputs() const { return inputs_; }
  const Choices& choices() const { return choices_; }
  std::int64_t value_dim() const { return value_dim_; }
  std::int64_t keys() const { return keys_; }  // of the longest sequence: columns of weights and scores
  Shape scores() const {
    const Shape& rows = inputs_.q.shape;
    return {rows.batch, rows.heads, rows.length, keys_};
  }

 private:
  View view(const Tensor& x) const { return view_of(x, placed_in(choices_.layout, x)); }
  void take_arrays();
  void take_cache();
  void take_packed();
  void take_padded();

  // k and v are read only where they are given. Each member is made in place: small calls are mostly this.
  bool has_arrays_;
  Tensor q_, k_, v_;
  Choices choices_;
  Inputs inputs_{};
  std::int64_t value_dim_ = 0, queries_ = 0, keys_ = 0;
};

// Tokens of the longest of these sequences of a cache, or of all of them where none are named, when entry b
// has got counts[b] more, or none. Where there are not as many of each as the batch has, the library says so.
std::int64_t longest(const KvCache& cache, std::span<const std::int64_t> sequences, std::int64_t batch,
                     std::span<const std::int64_t> counts = {});

}  // namespace heed::python
