// SPDX-License-Identifier: Apache-2.0
// Makes what a call was asked for.
#include "outputs.hpp"

#include <limits>

#include "views.hpp"

namespace heed::python {

namespace {

Result make_out(const Tensor& like, const Choices& choices, std::span<const std::int64_t> shape) {
  if (choices.out.is_valid()) {
    Result out("out", choices.out);
    check_same_rank(out.tensor(), like);
    return out;
  }
  dtype_of(like);
  return {"out", like, like.element, shape};
}

MutableView view_with(const Tensor& tensor, const Shape& shape) {
  return mutable_view_of(tensor, {shape, bhsd(shape)});
}

}  // namespace

Asked::Asked(const Question& question) {
  const Tensor& q = question.q();
  const Shape& rows = question.inputs().q.shape;
  const AxisOrder layout = question.choices().layout;
  const Shape shape{rows.batch, rows.heads, rows.length, question.value_dim()};
  out_.emplace(make_out(q, question.choices(), last_axes(extents_in(layout, shape, q.rank), q.rank)));
  outputs_.out = mutable_view_of(out_->tensor(), placed_in(layout, out_->tensor()));
  make_the_rest(q, {q.rank, question.scores()}, question.choices());
  if (question.choices().query_lengths) fill_padding(question.choices());
}

// Of what is made here: nothing will be written to the rows after an entry's own (S19).
void Asked::fill_padding(const Choices& choices) {
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  if (!choices.out.is_valid()) out_->fill(0);
  if (weights_) weights_->fill(0);
  if (lse_) lse_->fill(minus_infinity);
  if (scores_) scores_->fill(choices.scores == Stage::biased ? minus_infinity : 0);
}

Asked::Asked(const Tensor& x, const Shape& scores, std::int64_t model_dim, const Choices& choices) {
  const std::array<std::int64_t, 3> shape{scores.batch, scores.length, model_dim};
  out_.emplace(make_out(x, choices, last_axes(shape, x.rank)));
  Placed placed = right_aligned(out_->tensor());
  std::swap(placed.shape.batch, placed.shape.heads);
  std::swap(placed.stride.batch, placed.stride.heads);
  outputs_.out = mutable_view_of(out_->tensor(), placed);
  make_the_rest(x, {x.rank + 1, scores}, choices);
}

void Asked::make_the_rest(const Tensor& like, const Form& form, const Choices& choices) {
  const Shape& s = form.scores;
  const std::array<std::int64_t, 4> shape{s.batch, s.heads, s.length, s.dim};
  if (choices.weights == Weights::average) {
    const std::array<std::int64_t, 3> averaged{s.batch, s.length, s.dim};
    weights_.emplace("weights", like, like.element, last_axes(averaged, form.rank - 1));
    outputs_.weights = view_with(weights_->tensor(), {s.batch, 1, s.length, s.dim});
  } else if (choices.weights == Weights::per_head) {
    weights_.emplace("weights", like, like.element, last_axes(shape, form.rank));
    outputs_.weights = view_with(weights_->tensor(), s);
  }
  if (choices.wants_log_sum_exp) {
    lse_.emplace("lse", like, like.element == Element::f64 ? Element::f64 : Element::f32,
                 last_axes(std::span(shape).first(3), form.rank - 1));
    outputs_.log_sum_exp = view_with(lse_->tensor(), {s.batch, s.heads, s.length, 1});
  }
  if (choices.scores) {
    scores_.emplace("scores", like, like.element, last_axes(shape, form.rank));
    outputs_.scores = {view_with(scores_->tensor(), s), *choices.scores};
  }
}

nb::object Asked::results() {
  if (!weights_ && !lse_ && !scores_) return out_->object();
  nb::list all;
  for (std::optional<Result>* result : {&out_, &weights_, &lse_, &scores_})
    if (*result) all.append((*result)->object());
  return nb::tuple(all);
}

}  // namespace heed::python
