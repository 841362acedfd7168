// SPDX-License-Identifier: Apache-2.0
// What heed.distributed is made of: a group over messages of Python's, and attention over it.
#include "heed/distributed.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "backward.hpp"
#include "bindings.hpp"
#include "distributed_docs.hpp"
#include "mask_axes.hpp"
#include "outputs.hpp"
#include "python_messages.hpp"
#include "together.hpp"
#include "views.hpp"

namespace heed::python {
namespace {

using Stretches = std::vector<std::pair<std::int64_t, std::int64_t>>;
using ShareTuple = std::tuple<Stretches, Stretches, std::int64_t, std::int64_t>;
using WholeTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

WholeCall whole_of(const WholeTuple& whole) {
  const auto& [queries, keys, heads, kv_heads] = whole;
  return {queries, keys, heads, kv_heads};
}

Stretches pairs_of(const std::vector<Stretch>& stretches) {
  Stretches pairs;
  for (const Stretch& s : stretches) pairs.emplace_back(s.first, s.length);
  return pairs;
}

std::vector<Stretch> stretches_of(const Stretches& pairs) {
  std::vector<Stretch> stretches;
  for (const auto& [first, length] : pairs) stretches.push_back({first, length});
  return stretches;
}

std::vector<ShareTuple> split(const WholeTuple& whole, int ranks, int head_groups) {
  std::vector<ShareTuple> shares;
  for (const Share& s : split_grid(whole_of(whole), ranks, head_groups).of_rank)
    shares.emplace_back(pairs_of(s.queries), pairs_of(s.keys), s.first_kv_head, s.kv_heads);
  return shares;
}

Split split_of(const WholeTuple& whole, const std::vector<ShareTuple>& shares) {
  Split made{whole_of(whole), {}};
  for (const auto& [queries, keys, first_kv_head, kv_heads] : shares)
    made.of_rank.push_back({stretches_of(queries), stretches_of(keys), first_kv_head, kv_heads});
  return made;
}

void make_group(Group* self, nb::object messages, double deadline) {
  if (!(deadline > 0) || std::isinf(deadline))
    throw Error(Error::value, "deadline: " + std::to_string(deadline) + " s is not above 0");
  // A million years and more are as good as any longer time, and can be counted.
  const double counted = std::min(std::ceil(deadline * 1000), 1e17);
  const auto milliseconds = std::chrono::milliseconds(static_cast<std::int64_t>(counted));
  new (self) Group(python_messages(std::move(messages)), {.deadline = milliseconds});
}

// What a rank was asked, and room for the answer.
struct Asking {
  Question question;
  Asked asked;

  template <class... Arguments>
  explicit Asking(const Arguments&... arguments) : question(arguments...), asked(question) {}
};

nb::object attention_over(Group& group, const WholeTuple& whole, const std::vector<ShareTuple>& shares,
                          nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
  const Split made = split_of(whole, shares);
  const Question::Whole extents{made.whole.queries, made.whole.keys};
  const auto asking = read_together<Asking>(group, q, k, v, keywords, extents);
  const Question& question = asking->question;
  compute(question.choices(), question.scores(), [&] {
    heed::attention(group, made, question.inputs(), asking->asked.outputs(), question.choices().options);
  });
  return asking->asked.results();
}

nb::object backward_over(Group& group, const WholeTuple& whole, const std::vector<ShareTuple>& shares,
                         const nb::tuple& arrays, const nb::kwargs& keywords) {
  const Split made = split_of(whole, shares);
  const Question::Whole extents{made.whole.queries, made.whole.keys, Caller::backward_over_ranks};
  const Backward::Arguments arguments{arrays[0], arrays[1], arrays[2], arrays[3],
                                      arrays[4], arrays[5], arrays[6], arrays[7]};
  const auto asked = read_together<Backward>(group, arguments, keywords, extents);
  const Question& question = asked->question();
  const Saved saved = asked->saved();
  const Gradients gradients = asked->gradients();
  compute(question.choices(), question.scores(), [&] {
    heed::attention_backward(group, made, question.inputs(), saved, gradients, question.choices().options);
  });
  return asked->results();
}

nb::object decode_over(Group& group, nb::handle q, const KvCache& cache,
                       const std::vector<std::int64_t>& lengths, const nb::kwargs& keywords) {
  const auto asking = read_together<Asking>(group, q, cache, lengths, keywords);
  const Question& question = asking->question;
  const Choices& choices = question.choices();
  const SpreadCache spread{.cache = &cache, .lengths = lengths, .sequences = choices.sequences};
  compute(choices, question.scores(), [&] {
    heed::attention(group, question.inputs().q, spread, asking->asked.outputs(), choices.options);
  });
  return asking->asked.results();
}

void append(const Group& group, KvCache& cache, std::int64_t sequence, std::int64_t length, nb::handle k,
            nb::handle v) {
  const Tensor keys = read_tensor("k", k), values = read_tensor("v", v);
  check_rank(keys, 2, 4);
  check_same_rank(values, keys);
  const View key_view = view_of(keys, right_aligned(keys)),
             value_view = view_of(values, right_aligned(values));
  compute([&] { append_own(cache, sequence, length, key_view, value_view, group.rank(), group.size()); });
}

}  // namespace

void define_distributed(nb::module_& m) {
  nb::class_<Group>(m, "Group", group_doc)
      .def("__init__", &make_group, nb::arg("messages"), nb::arg("deadline") = 60.0)
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def(
          "abort", [](Group& self, const std::string& why) { compute([&] { self.abort(why); }); },
          nb::arg("why"), abort_doc);
  m.def("split_over_ranks", &split, nb::arg("whole"), nb::arg("ranks"), nb::arg("head_groups"),
        split_over_ranks_doc);
  m.def("attention_over_ranks", &attention_over, nb::arg("group"), nb::arg("whole"), nb::arg("shares"),
        nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("options"),
        attention_over_ranks_doc);
  m.def("attention_backward_over_ranks", &backward_over, nb::arg("group"), nb::arg("whole"),
        nb::arg("shares"), nb::arg("arrays"), nb::arg("options"), attention_backward_over_ranks_doc);
  m.def("decode_over_ranks", &decode_over, nb::arg("group"), nb::arg("q").none(), nb::arg("cache"),
        nb::arg("lengths"), nb::arg("options"), decode_over_ranks_doc);
  m.def("append_own", &append, nb::arg("group"), nb::arg("cache"), nb::arg("sequence"), nb::arg("length"),
        nb::arg("k").none(), nb::arg("v").none(), append_own_doc);
}

}  // namespace heed::python
