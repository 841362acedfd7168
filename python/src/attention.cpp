// SPDX-License-Identifier: Apache-2.0
// heed.attention, heed.plan, heed.explain and heed.merge.
#include "bindings.hpp"
#include "docs.hpp"
#include "mask_axes.hpp"
#include "outputs.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

nb::object attention(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  const Question question(q, k, v, keywords);
  const Choices& choices = question.choices();
  Asked asked(question);
  compute(choices, question.scores(),
          [&] { heed::attention(question.inputs(), asked.outputs(), choices.options); });
  return asked.results();
}

nb::list plan(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  const Question question(q, k, v, keywords);
  const Asked asked(question);
  std::vector<Verdict> verdicts;
  compute(question.choices(), question.scores(),
          [&] { verdicts = heed::plan(question.inputs(), asked.outputs(), question.choices().options); });
  const nb::object type = nb::module_::import_("heed._verdicts").attr("Verdict");
  nb::list list;
  for (const Verdict& verdict : verdicts)
    list.append(type(verdict.kernel, name_of(verdict.choice), verdict.reason));
  return list;
}

std::string explain(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  const Question question(q, k, v, keywords);
  const Asked asked(question);
  std::string lines;
  compute(question.choices(), question.scores(),
          [&] { lines = heed::explain(question.inputs(), asked.outputs(), question.choices().options); });
  return lines;
}

// One result to merge: (out, lse) as attention(..., return_lse=True) gives it.
struct Part {
  Tensor out, lse;
};

Part read_part(nb::handle object) {
  if (!(nb::isinstance<nb::tuple>(object) || nb::isinstance<nb::list>(object)) || nb::len(object) != 2)
    throw wrong_kind("parts", object, "a pair (out, lse)");
  Part part{read_tensor("out", object[0]), read_tensor("lse", object[1])};
  check_rank(part.out, 2, 4);
  check_rank(part.lse, part.out.rank - 1, part.out.rank - 1);
  return part;
}

Results results_of(const Part& part) {
  return {.out = view_of(part.out, right_aligned(part.out)),
          .log_sum_exp = view_of(part.lse, one_per_row(part.lse))};
}

Outputs outputs_of(const Tensor& out, const Tensor& lse) {
  return {.out = mutable_view_of(out, right_aligned(out)),
          .log_sum_exp = mutable_view_of(lse, one_per_row(lse))};
}

nb::object merge(const nb::args& parts) {
  if (parts.size() == 0) throw Error(Error::value, "parts: none are given; at least one is needed");
  const Part first = read_part(parts[0]);
  if (first.lse.element != Element::f32 && first.lse.element != Element::f64)
    throw Error(Error::dtype,
                std::string("lse.dtype: ") + name_of(first.lse.element) + " is neither f32 nor f64");
  dtype_of(first.out);
  Result out("out", first.out, first.out.element, first.out.extents());
  Result lse("lse", first.out, first.lse.element, first.lse.extents());
  copy_elements(first.out, out.tensor());
  copy_elements(first.lse, lse.tensor());
  const Outputs into = outputs_of(out.tensor(), lse.tensor());
  for (std::size_t n = 1; n < parts.size(); ++n) {
    const Part part = read_part(parts[n]);
    check_same_rank(part.out, first.out);
    const Results other = results_of(part);
    compute([&] { heed::merge(into, other); });
  }
  const nb::object merged = out.object();
  return nb::make_tuple(merged, lse.object());
}

}  // namespace

void define_attention(nb::module_& m) {
  // The first takes every call; the others are for type checkers.
  const std::string arguments = "(q: ArrayT, k: ArrayT | None = None, v: ArrayT | None = None, *";
  for (const std::string& signature :
       overloads_of(Caller::attention, "attention" + arguments, "bool", "True"))
    m.def("attention", &attention, nb::arg("q").none(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(),
          nb::arg("options"), nb::sig(signature.c_str()), attention_doc);
  m.def("plan", &plan, nb::arg("q").none(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(),
        nb::arg("options"),
        nb::sig(signature_of(Caller::attention,
                             {"plan" + arguments, any_results("bool"), "list[heed._verdicts.Verdict]"})
                    .c_str()),
        plan_doc);
  m.def("explain", &explain, nb::arg("q").none(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(),
        nb::arg("options"),
        nb::sig(signature_of(Caller::attention, {"explain" + arguments, any_results("bool"), "str"}).c_str()),
        explain_doc);
  m.def("merge", &merge, nb::arg("parts"),
        nb::sig("def merge(*parts: tuple[ArrayT, ArrayT]) -> tuple[ArrayT, ArrayT]"), merge_doc);
}

}  // namespace heed::python
