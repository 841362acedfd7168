// SPDX-License-Identifier: Apache-2.0
// heed.Rotary and heed.rotate: rotary position embedding.
#include "heed/rotary.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bindings.hpp"
#include "choices.hpp"
#include "result.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

RotaryPairs read_pairs(const std::string& word) {
  if (word == "halves") return RotaryPairs::halves;
  if (word == "adjacent") return RotaryPairs::adjacent;
  throw Error(Error::value, "pairs: \"" + word + "\" is none of \"halves\", \"adjacent\"");
}

const char* word_for(RotaryPairs pairs) { return pairs == RotaryPairs::halves ? "halves" : "adjacent"; }

std::string in_words(const Rotary& rotary) {
  std::array<char, 32> base{};
  std::snprintf(base.data(), base.size(), "%.9g", static_cast<double>(rotary.base));
  return std::string("Rotary(base=") + base.data() +
         ", dims=" + (rotary.dims ? std::to_string(*rotary.dims) : "None") + ", pairs='" +
         word_for(rotary.pairs) + "')";
}

std::vector<std::int64_t> read_positions(nb::handle object, const Tensor& x) {
  if (!object.is_none()) return read_integers("positions", object).values;
  std::vector<std::int64_t> counted(static_cast<std::size_t>(x.shape[static_cast<std::size_t>(x.rank - 2)]));
  std::iota(counted.begin(), counted.end(), 0);
  return counted;
}

nb::object rotate(nb::handle x, nb::handle positions, const Rotary& rotary, nb::handle out) {
  const Tensor from = read_tensor("x", x);
  check_rank(from, 2, 4);
  dtype_of(from);
  const std::vector<std::int64_t> places = read_positions(positions, from);
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
  compute({}, [&] { heed::rotate(view, places, rotary); });
  if (!into) return turned.object();
  copy_elements(turned.tensor(), into->tensor());
  return into->object();
}

constexpr const char* rotary_doc =
    R"(How positions turn a head: pair d of a token at position p turns by p * base**(-2d/dims).

dims: how many leading dimensions turn, even; None: all of them. pairs: "halves" pairs d with d + dims/2,
"adjacent" pairs 2d with 2d + 1.

>>> import heed
>>> heed.Rotary(base=500000.0, dims=64)
Rotary(base=500000, dims=64, pairs='halves')
)";
constexpr const char* rotate_doc =
    R"(Rotary position embedding of x, (batch, heads, length, dim), or without the leading axes.

positions is (length,) or (batch, length), integers; default 0, 1, 2, ... Returns a new array; with out, that array,
which may be x itself.

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
          [](Rotary* self, nb::handle base, std::optional<std::int64_t> dims, const std::string& pairs) {
            new (self) Rotary{read_float("base", base), dims, read_pairs(pairs)};
          },
          nb::arg("base").none() = 10000.0, nb::arg("dims") = nb::none(), nb::arg("pairs") = "halves",
          nb::sig("def __init__(self, base: float = 10000.0, dims: int | None = None, pairs: str = 'halves') "
                  "-> None"))
      .def_ro("base", &Rotary::base, "The slowest pair turns about base times slower than the first.")
      .def_ro("dims", &Rotary::dims, "How many leading dimensions turn; None: all.")
      .def_prop_ro(
          "pairs", [](const Rotary& self) { return word_for(self.pairs); }, "\"halves\" or \"adjacent\".")
      .def("__repr__", &in_words);
  m.def("rotate", &rotate, nb::arg("x").none(), nb::arg("positions") = nb::none(),
        nb::arg("rotary") = Rotary{}, nb::arg("out") = nb::none(),
        nb::sig(
            "def rotate(x: ArrayT, positions: typing.Any = None, rotary: Rotary = ..., out: ArrayT | None = "
            "None) -> ArrayT"),
        rotate_doc);
}

}  // namespace heed::python
