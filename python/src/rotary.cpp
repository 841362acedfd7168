// SPDX-License-Identifier: Apache-2.0
// heed.Rotary and heed.rotate: rotary position embedding.
#include "heed/rotary.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bindings.hpp"
#include "choices.hpp"
#include "copies.hpp"
#include "result.hpp"
#include "scaling.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

RotaryPairs read_pairs(nb::handle object) {
  const std::string word = read_word("pairs", object);
  if (word == "halves") return RotaryPairs::halves;
  if (word == "adjacent") return RotaryPairs::adjacent;
  throw Error(Error::value, "pairs: \"" + word + "\" is none of \"halves\", \"adjacent\"");
}

// Made where it is to lie: g++ 12 takes a move of it, of a scaling that may not be there, for one of nothing.
Rotary read_rotary(nb::handle base, nb::handle dims, nb::handle pairs, nb::handle scaling) {
  Rotary rotary{.base = read_float("base", base)};
  if (!dims.is_none()) rotary.dims = read_integer("dims", dims);
  rotary.pairs = read_pairs(pairs);
  rotary.scaling = read_scaling(scaling);
  return rotary;
}

const char* word_for(RotaryPairs pairs) { return pairs == RotaryPairs::halves ? "halves" : "adjacent"; }

std::string in_words(const Rotary& rotary) {
  std::array<char, 32> base{};
  std::snprintf(base.data(), base.size(), "%.9g", static_cast<double>(rotary.base));
  return std::string("Rotary(base=") + base.data() +
         ", dims=" + (rotary.dims ? std::to_string(*rotary.dims) : "None") + ", pairs='" +
         word_for(rotary.pairs) + "'" +
         (rotary.scaling ? ", scaling=" + text_of(scaling_as_dict(rotary.scaling)) : "") + ")";
}

std::vector<std::int64_t> read_positions(nb::handle object, const Tensor& x) {
  if (!object.is_none()) return read_integers("positions", object).values;
  std::vector<std::int64_t> counted(static_cast<std::size_t>(x.shape[static_cast<std::size_t>(x.rank - 2)]));
  std::iota(counted.begin(), counted.end(), 0);
  return counted;
}

nb::object rotate(nb::handle x, nb::handle positions, nb::handle turning, nb::handle out,
                  nb::handle lengths) {
  const Tensor from = read_tensor("x", x);
  check_rank(from, 2, 4);
  dtype_of(from);
  if (!nb::isinstance<Rotary>(turning)) throw wrong_kind("rotary", turning, "a heed.Rotary");
  const auto& rotary = nb::cast<const Rotary&>(turning);
  const std::vector<std::int64_t> places = read_positions(positions, from);
  SaidList reached;
  if (!lengths.is_none()) reached = read_integers("lengths", lengths).values;
  check_not_empty("lengths", reached, right_aligned(from).shape.batch, "batch entry");
  // Turned in an array of its own first: what is refused must leave out as it was, and out may be x.
  Result turned("x", from, from.element, from.extents());
  copy_elements(from, turned.tensor());
  const MutableView view = mutable_view_of(turned.tensor(), right_aligned(turned.tensor()));
  std::optional<Result> into;
  if (!out.is_none()) {
    into.emplace("out", out);
    const Tensor& target = into->tensor();
    if (!std::ranges::equal(target.extents(), from.extents()) || target.element != from.element)
      throw Error(Error::shape, "out: its shape or dtype is not that of x");
  }
  compute([&] { heed::rotate(view, places, rotary, entries_of(reached)); });
  if (!into) return turned.object();
  copy_elements(turned.tensor(), into->tensor());
  return into->object();
}

constexpr const char* rotary_doc =
    R"(How positions turn a head: pair d of a token at position p turns by p * base**(-2d/dims).

dims: how many leading dimensions turn, even; None: all of them. pairs: "halves" pairs d with d + dims/2,
"adjacent" pairs 2d with 2d + 1. scaling changes the frequencies for models that reach further than they were trained:
a dict as Hugging Face's configurations have it, whose rope_type is "linear", "dynamic", "yarn", "llama3" or "longrope".
Every kind but linear has original_max_position_embeddings, the trained length.

>>> import heed
>>> heed.Rotary(base=500000.0, dims=64)
Rotary(base=500000, dims=64, pairs='halves')
>>> heed.Rotary(scaling={"rope_type": "linear", "factor": 4.0}).scaling
{'rope_type': 'linear', 'factor': 4.0}
)";
constexpr const char* rotate_doc =
    R"(Rotary position embedding of x, (batch, heads, length, dim), or without the leading axes.

positions is (length,) or (batch, length), integers; default 0, 1, 2, ... Returns a new array; with out, that array,
which may be x itself. lengths, one number or one per batch entry, are those of the sequences, which a dynamic or longrope
scaling goes by; default: each one's largest position + 1.

>>> import numpy, heed
>>> x = numpy.array([[1, 0], [1, 0]], numpy.float32)
>>> heed.rotate(x).round(3)
array([[1.   , 0.   ],
       [0.54 , 0.841]], dtype=float32)
)";

}  // namespace

void define_rotary(nb::module_& m) {
  nb::class_<Rotary>(m, "Rotary", rotary_doc)
      .def(
          "__init__",
          [](Rotary* self, nb::handle base, nb::handle dims, nb::handle pairs, nb::handle scaling) {
            new (self) Rotary(read_rotary(base, dims, pairs, scaling));
          },
          nb::arg("base").none() = 10000.0, nb::arg("dims") = nb::none(), nb::arg("pairs").none() = "halves",
          nb::arg("scaling") = nb::none(),
          nb::sig("def __init__(self, base: float = 10000.0, dims: int | None = None, pairs: "
                  "typing.Literal['halves', 'adjacent'] = 'halves', "
                  "scaling: dict[str, typing.Any] | None = None) -> None"))
      .def_ro("base", &Rotary::base, "The slowest pair turns about base times slower than the first.")
      .def_ro("dims", &Rotary::dims, "How many leading dimensions turn; None: all.")
      .def_prop_ro(
          "pairs", [](const Rotary& self) { return word_for(self.pairs); },
          nb::for_getter(nb::sig("def pairs(self, /) -> typing.Literal['halves', 'adjacent']")),
          "\"halves\" or \"adjacent\".")
      .def_prop_ro(
          "scaling", [](const Rotary& self) { return scaling_as_dict(self.scaling); },
          nb::for_getter(nb::sig("def scaling(self, /) -> dict[str, typing.Any] | None")),
          "As Hugging Face's configurations have it; None: none.")
      .def("__reduce__",
           [](nb::handle self) {
             const auto& rotary = nb::cast<const Rotary&>(self);
             const nb::object arguments = nb::make_tuple(rotary.base, rotary.dims, word_for(rotary.pairs),
                                                         scaling_as_dict(rotary.scaling));
             return nb::make_tuple(self.type(), arguments, attributes_of(self));
           })
      .def("__repr__", &in_words);
  m.def("rotate", &rotate, nb::arg("x").none(), nb::arg("positions") = nb::none(),
        nb::arg("rotary").none() = Rotary{}, nb::arg("out") = nb::none(), nb::arg("lengths") = nb::none(),
        nb::sig(
            "def rotate(x: ArrayT, positions: typing.Any = None, rotary: Rotary = ..., out: ArrayT | None = "
            "None, lengths: typing.Any = None) -> ArrayT"),
        rotate_doc);
}

}  // namespace heed::python
