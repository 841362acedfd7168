// SPDX-License-Identifier: Apache-2.0
// What a backward pass is asked: what the forward pass saved, the gradients that come in, and room for those
// that go out.
#pragma once
#include <array>
#include <optional>

#include "heed/gradient.hpp"
#include "question.hpp"
#include "result.hpp"

namespace heed::python {

class Backward {
 public:
  struct Arguments {
    nb::handle out_gradient, q, k, v, out, lse, lse_gradient, by;
    nb::handle into = nb::none();
  };
  Backward(const Arguments&, const nb::kwargs& keywords);
  // Of one rank's share.
  Backward(const Arguments&, const nb::kwargs& keywords, const Question::Whole& whole);

  const Question& question() const { return question_; }
  Saved saved() const;
  Gradients gradients() const;
  nb::object results();  // a tuple of those asked for, in the order q, k, v, bias, sink

 private:
  // A gradient to be written: of the argument's library, element type and shape, or the caller's own array.
  struct Written {
    Result result;
    MutableView view;
    Written(const char* name, const Tensor& of, const View& as);
    Written(Result made, const Tensor& of, AxisOrder);  // by one of q, k and v
  };

  void take_saved(const Arguments&, Where);
  void make_room(const std::array<bool, 5>& wanted, nb::handle into);
  void write(std::size_t which, const Tensor& of, const View& as);

  Question question_;
  Tensor out_gradient_{}, out_{}, lse_{}, lse_gradient_{};
  std::array<std::optional<Written>, 5> written_{};
};

}  // namespace heed::python
