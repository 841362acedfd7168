// SPDX-License-Identifier: Apache-2.0
// heed.attention_backward: the gradients of attention(), for arrays of any library.
#include "heed/gradient.hpp"

#include "backward.hpp"
#include "bindings.hpp"
#include "gradient_docs.hpp"
#include "mask_axes.hpp"

namespace heed::python {

namespace {

nb::object attention_backward(nb::handle out_gradient, nb::handle q, nb::handle k, nb::handle v,
                              nb::handle out, nb::handle lse, nb::handle lse_gradient, nb::handle by,
                              nb::handle into, const nb::kwargs& keywords) {
  Backward asked({out_gradient, q, k, v, out, lse, lse_gradient, by, into}, keywords);
  const Question& question = asked.question();
  const Saved saved = asked.saved();
  const Gradients gradients = asked.gradients();
  compute(question.choices(), question.scores(),
          [&] { heed::attention_backward(question.inputs(), saved, gradients, question.choices().options); });
  return asked.results();
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
        nb::arg("lse_gradient") = nb::none(), nb::arg("by").none() = nb::make_tuple("q", "k", "v"),
        nb::arg("into") = nb::none(), nb::arg("options"),
        nb::sig(signature_of(Caller::backward, {attention_backward_begin, "", "tuple[ArrayT, ...]"}).c_str()),
        attention_backward_doc);
  m.def("backward_kernel_names", &names_of_kernels, nb::sig("def backward_kernel_names() -> list[str]"),
        backward_kernel_names_doc);
}

}  // namespace heed::python
