// SPDX-License-Identifier: Apache-2.0
// heed.attention_backward: the gradients of attention(), for arrays of any library.
#include "heed/gradient.hpp"

#include <algorithm>

#include "bindings.hpp"
#include "gradient_docs.hpp"
#include "mask_axes.hpp"
#include "question.hpp"
#include "result.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

constexpr std::array<const char*, 5> arguments{"q", "k", "v", "bias", "sink"};

// Which of them gradients are asked for, in that order.
std::array<bool, 5> read_by(nb::handle object) {
  std::array<bool, 5> wanted{};
  if (nb::isinstance<nb::str>(object) || !nb::hasattr(object, "__iter__"))
    throw wrong_kind("by", object, "a tuple of names of arguments");
  for (const nb::handle name : nb::iter(object)) {
    const std::string word = read_word("by", name);
    const auto found = std::find(arguments.begin(), arguments.end(), word);
    if (found == arguments.end())
      throw Error(Error::value, "by: \"" + word + R"(" is none of "q", "k", "v", "bias", "sink")");
    wanted[static_cast<std::size_t>(found - arguments.begin())] = true;
  }
  return wanted;
}

// A gradient to be written: of the argument's library, element type and shape.
struct Written {
  Result result;
  MutableView view;

  Written(const char* name, const Tensor& of, const View& as)
      : result(name, of, of.element, of.extents()),
        view(result.tensor().data, as.shape, bhsd(as.shape), as.dtype, as.device) {}
};

const Tensor& held(const Choices& choices, const char* name) {
  for (const Tensor& tensor : choices.held)
    if (std::string_view(tensor.name) == name) return tensor;
  throw Error(Error::value, std::string("by: \"") + name + "\", but " + name + " is not given");
}

struct Backward {
  Question question;
  Tensor out, lse, out_gradient, lse_gradient{};
  std::array<std::optional<Written>, 5> written{};

  Backward(nb::handle gradient, nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords)
      : question(q, k, v, keywords, Caller::backward), out_gradient(read_tensor("out_gradient", gradient)) {}

  void write(std::size_t which, const Tensor& of, const View& as) {
    written[which].emplace(arguments[which], of, as);
  }

  Gradients gradients() const {
    const auto view = [&](std::size_t i) {
      return written[i] ? Optional<MutableView>(written[i]->view) : Optional<MutableView>();
    };
    Gradients made{.out = view_of(out_gradient, right_aligned(out_gradient)),
                   .q = view(0),
                   .k = view(1),
                   .v = view(2),
                   .bias = view(3),
                   .sink = view(4)};
    if (lse_gradient.rank > 0) made.log_sum_exp = view_of(lse_gradient, one_per_row(lse_gradient));
    return made;
  }
};

void take_saved(Backward& b, nb::handle out, nb::handle lse, nb::handle lse_gradient) {
  b.out = read_tensor("out", out);
  b.lse = read_tensor("lse", lse);
  const int rank = b.question.q().rank;
  for (const Tensor* tensor : {&b.out, &b.out_gradient}) check_rank(*tensor, rank, rank);
  check_rank(b.lse, rank - 1, rank - 1);
  if (lse_gradient.is_none()) return;
  b.lse_gradient = read_tensor("lse_gradient", lse_gradient);
  check_rank(b.lse_gradient, rank - 1, rank - 1);
}

void make_room(Backward& b, const std::array<bool, 5>& wanted) {
  const Inputs& inputs = b.question.inputs();
  const Choices& choices = b.question.choices();
  if (wanted[0]) b.write(0, b.question.q(), inputs.q);
  if (wanted[1]) b.write(1, b.question.k(), inputs.k);
  if (wanted[2]) b.write(2, b.question.v(), inputs.v);
  if (wanted[3]) {
    const Tensor& bias = held(choices, "bias");
    b.write(3, bias, *choices.options.bias);
  }
  if (wanted[4]) {
    const Tensor& sink = held(choices, "sink");
    b.write(4, sink, *choices.options.sink);
  }
}

nb::object attention_backward(nb::handle out_gradient, nb::handle q, nb::handle k, nb::handle v,
                              nb::handle out, nb::handle lse, nb::handle lse_gradient, nb::handle by,
                              const nb::kwargs& keywords) {
  Backward b(out_gradient, q, k, v, keywords);
  take_saved(b, out, lse, lse_gradient);
  make_room(b, read_by(by));
  const Saved saved{view_of(b.out, right_aligned(b.out)), view_of(b.lse, one_per_row(b.lse))};
  const Gradients gradients = b.gradients();
  const Choices& choices = b.question.choices();
  compute(choices, b.question.scores(),
          [&] { heed::attention_backward(b.question.inputs(), saved, gradients, choices.options); });
  nb::list all;
  for (std::optional<Written>& written : b.written)
    if (written) all.append(written->result.object());
  return nb::tuple(all);
}

nb::list names_of_kernels() {
  nb::list names;
  for (const std::string& name : backward_kernel_names()) names.append(nb::str(name.c_str()));
  return names;
}

}  // namespace

void define_gradient(nb::module_& m) {
  m.def("attention_backward", &attention_backward, nb::arg("out_gradient").none(), nb::arg("q").none(),
        nb::arg("k").none(), nb::arg("v").none(), nb::arg("out").none(), nb::arg("lse").none(), nb::kw_only(),
        nb::arg("lse_gradient") = nb::none(), nb::arg("by") = nb::make_tuple("q", "k", "v"),
        nb::arg("options"), nb::sig(attention_backward_signature), attention_backward_doc);
  m.def("backward_kernel_names", &names_of_kernels, nb::sig("def backward_kernel_names() -> list[str]"),
        backward_kernel_names_doc);
}

}  // namespace heed::python
