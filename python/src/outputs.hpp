// SPDX-License-Identifier: Apache-2.0
// The arrays a call was asked for, made before it and returned after it.
#pragma once
#include <optional>

#include "question.hpp"
#include "result.hpp"

namespace heed::python {

class Asked {
 public:
  // Of attention(): out has q's rank, weights and scores as well, log-sum-exp one axis less.
  explicit Asked(const Question& question);
  // Of the layer: out has x's rank, and heads are an axis of their own in the others.
  Asked(const Tensor& x, const Shape& scores, std::int64_t model_dim, const Choices& choices);

  const Outputs& outputs() const { return outputs_; }
  // The array, or a tuple of those asked for: (out, weights, lse, scores).
  nb::object results();

 private:
  struct Form {
    int rank;  // of weights and scores
    Shape scores;
  };
  void fill_padding(const Choices& choices);
  void make_the_rest(const Tensor& like, const Form& form, const Choices& choices);

  std::optional<Result> out_, weights_, lse_, scores_;
  Outputs outputs_{};
};

}  // namespace heed::python
