// SPDX-License-Identifier: Apache-2.0
// What heed.distributed is made of: a group over messages of Python's, and attention over it.
#include "heed/distributed.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

WholeCall read_whole(const nb::tuple& whole) {
  return {read_integer("queries", whole[0]), read_integer("keys", whole[1]), read_integer("heads", whole[2]),
          read_integer("kv_heads", whole[3])};
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

int read_ranks(const char* name, nb::handle object) {
  const std::int64_t ranks = read_integer(name, object);
  if (!std::in_range<int>(ranks))
    throw Error(Error::value, std::string(name) + ": " + std::to_string(ranks) + " is outside [1, " +
                                  std::to_string(std::numeric_limits<int>::max()) + "]");
  return static_cast<int>(ranks);
}

std::vector<ShareTuple> split(const nb::tuple& whole, nb::handle ranks, nb::handle head_groups) {
  const WholeCall extents = read_whole(whole);
  const int all = read_ranks("ranks", ranks), groups = read_ranks("head_groups", head_groups);
  const Split made = split_grid(extents, all, groups);
  std::vector<ShareTuple> shares;
  for (const Share& s : made.of_rank)
    shares.emplace_back(pairs_of(s.queries), pairs_of(s.keys), s.first_kv_head, s.kv_heads);
  return shares;
}

// heed.distributed.Split, which anybody may make.
Split read_split(nb::handle object) try {
  if (!nb::hasattr(object, "_in_numbers")) throw wrong_kind("split", object, "a heed.distributed.Split");
  const nb::object numbers = object.attr("_in_numbers")();
  Split made{read_whole(nb::cast<nb::tuple>(numbers[0])), {}};
  for (const auto& [queries, keys, first_kv_head, kv_heads] :
       nb::cast<std::vector<ShareTuple>>(nb::object(numbers[1])))
    made.of_rank.push_back({stretches_of(queries), stretches_of(keys), first_kv_head, kv_heads});
  return made;
} catch (const std::bad_cast&) {
  throw Error(
      Error::dtype,
      "split.of_rank: a share is not stretches (first, length) of queries and of keys, and two integers");
} catch (nb::python_error& error) {
  error.restore();
  throw from_python_error("split", "cannot be read", Error::dtype);
}

KvCache& read_part(nb::handle object) {
  if (!nb::isinstance<KvCache>(object)) throw wrong_kind("cache", object, "a heed.KvCache");
  return nb::cast<KvCache&>(object);
}

void make_group(Group* self, nb::object messages, nb::handle deadline) {
  const float seconds = read_float("deadline", deadline);
  if (!(seconds > 0) || std::isinf(seconds))
    throw Error(Error::value, "deadline: " + text_of(deadline) + " s is not above 0");
  // A million years and more are as good as any longer time, and can be counted.
  const double counted = std::min(std::ceil(static_cast<double>(seconds) * 1000), 1e17);
  const auto milliseconds = std::chrono::milliseconds(static_cast<std::int64_t>(counted));
  new (self) Group(python_messages(std::move(messages)), {.deadline = milliseconds});
}

// What a rank was asked, and room for the answer.
struct Asking {
  Split split;
  Question question;
  Asked asked;

  Asking(nb::handle split_object, const nb::tuple& qkv, const nb::kwargs& keywords)
      : split(read_split(split_object)),
        question(qkv[0], qkv[1], qkv[2], keywords, Question::Whole{split.whole.queries, split.whole.keys}),
        asked(question) {}
};

nb::object attention_over(nb::handle group_object, nb::handle split, const nb::tuple& qkv,
                          const nb::kwargs& keywords) {
  Group& group = read_group(group_object);
  const auto asking = read_together<Asking>(group, split, qkv, keywords);
  const Question& question = asking->question;
  compute(question.choices(), question.scores(), [&] {
    heed::attention(group, asking->split, question.inputs(), asking->asked.outputs(),
                    question.choices().options);
  });
  return asking->asked.results();
}

struct BackwardAsking {
  Split split;
  Backward backward;

  BackwardAsking(nb::handle split_object, const nb::tuple& a, const nb::kwargs& keywords)
      : split(read_split(split_object)),
        backward(Backward::Arguments{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]}, keywords,
                 Question::Whole{split.whole.queries, split.whole.keys, Caller::backward_over_ranks}) {}
};

nb::object backward_over(nb::handle group_object, nb::handle split, const nb::tuple& arrays,
                         const nb::kwargs& keywords) {
  Group& group = read_group(group_object);
  const auto asking = read_together<BackwardAsking>(group, split, arrays, keywords);
  const Question& question = asking->backward.question();
  const Saved saved = asking->backward.saved();
  const Gradients gradients = asking->backward.gradients();
  compute(question.choices(), question.scores(), [&] {
    heed::attention_backward(group, asking->split, question.inputs(), saved, gradients,
                             question.choices().options);
  });
  return asking->backward.results();
}

struct DecodeAsking {
  const KvCache& cache;
  std::vector<std::int64_t> lengths;
  Question question;
  Asked asked;

  DecodeAsking(nb::handle q, nb::handle part, nb::handle of_sequences, const nb::kwargs& keywords)
      : cache(read_part(part)),
        lengths(read_integers("lengths", of_sequences).values),
        question(q, cache, lengths, keywords),
        asked(question) {}
};

nb::object decode_over(nb::handle group_object, nb::handle q, nb::handle cache, nb::handle lengths,
                       const nb::kwargs& keywords) {
  Group& group = read_group(group_object);
  const auto asking = read_together<DecodeAsking>(group, q, cache, lengths, keywords);
  const Choices& choices = asking->question.choices();
  const SpreadCache spread{
      .cache = &asking->cache, .lengths = asking->lengths, .sequences = entries_of(choices.sequences)};
  compute(choices, asking->question.scores(), [&] {
    heed::attention(group, asking->question.inputs().q, spread, asking->asked.outputs(), choices.options);
  });
  return asking->asked.results();
}

void append(nb::handle group_object, nb::handle cache_object, const nb::tuple& place, nb::handle k,
            nb::handle v) {
  const Group& group = read_group(group_object);
  KvCache& cache = read_part(cache_object);
  const std::int64_t sequence = read_integer("sequence", place[0]), length = read_integer("length", place[1]);
  const Tensor keys = read_tensor("k", k), values = read_tensor("v", v);
  check_rank(keys, 2, 4);
  check_same_rank(values, keys);
  const View key_view = view_of(keys, right_aligned(keys)),
             value_view = view_of(values, right_aligned(values));
  compute([&] { append_own(cache, sequence, length, key_view, value_view, group.rank(), group.size()); });
}

}  // namespace

void define_distributed(nb::module_& m) {
  define_python_messages();
  nb::class_<Group>(m, "Group", group_doc)
      .def("__init__", &make_group, nb::arg("messages"), nb::arg("deadline").none() = 60.0,
           nb::sig("def __init__(self, messages: object, deadline: float = 60.0) -> None"))
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def(
          "abort",
          [](Group& self, nb::handle why) {
            const std::string said = read_word("why", why);
            compute([&] { self.abort(said); });
          },
          nb::arg("why").none(), nb::sig("def abort(self, why: str) -> None"), abort_doc);
  m.def("split_over_ranks", &split, nb::arg("whole"), nb::arg("ranks").none(), nb::arg("head_groups").none(),
        split_over_ranks_doc);
  m.def("attention_over_ranks", &attention_over, nb::arg("group").none(), nb::arg("split").none(),
        nb::arg("qkv"), nb::arg("options"), attention_over_ranks_doc);
  m.def("attention_backward_over_ranks", &backward_over, nb::arg("group").none(), nb::arg("split").none(),
        nb::arg("arrays"), nb::arg("options"), attention_backward_over_ranks_doc);
  m.def("decode_over_ranks", &decode_over, nb::arg("group").none(), nb::arg("q").none(),
        nb::arg("cache").none(), nb::arg("lengths").none(), nb::arg("options"), decode_over_ranks_doc);
  m.def("append_own", &append, nb::arg("group").none(), nb::arg("cache").none(), nb::arg("place"),
        nb::arg("k").none(), nb::arg("v").none(), append_own_doc);
}

}  // namespace heed::python
