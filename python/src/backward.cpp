// SPDX-License-Identifier: Apache-2.0
#include "backward.hpp"

#include <algorithm>

#include "views.hpp"

namespace heed::python {

namespace {

constexpr std::array<const char*, 5> arguments{"q", "k", "v", "bias", "sink"};
constexpr std::array<const char*, 3> arrays_given{"into[q]", "into[k]", "into[v]"};

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
    bool& is_wanted = wanted[static_cast<std::size_t>(found - arguments.begin())];
    if (is_wanted) throw Error(Error::value, "by: \"" + word + "\" is named twice");
    is_wanted = true;
  }
  return wanted;
}

// The caller's arrays for those of q, k and v that gradients are asked for.
std::array<nb::object, 3> read_into(nb::handle object, const std::array<bool, 5>& wanted) {
  std::array<nb::object, 3> found{};
  if (object.is_none()) return found;
  if (!nb::isinstance<nb::tuple>(object) && !nb::isinstance<nb::list>(object))
    throw wrong_kind("into", object, "a tuple of arrays");
  const auto count = std::count(wanted.begin(), wanted.begin() + 3, true);
  if (const auto given = static_cast<std::ptrdiff_t>(nb::len(object)); given != count)
    throw Error(Error::value, "into: " + std::to_string(given) + " arrays for " + std::to_string(count) +
                                  " gradients by q, k and v");
  for (std::size_t i = 0, n = 0; i < found.size(); ++i)
    if (wanted[i]) found[i] = nb::object(object[n++]);
  return found;
}

const Tensor& held(const Choices& choices, const char* name) {
  for (const Tensor& tensor : choices.held)
    if (std::string_view(tensor.name) == name) return tensor;
  throw Error(Error::value, std::string("by: \"") + name + "\", but " + name + " is not given");
}

}  // namespace

Backward::Written::Written(const char* name, const Tensor& of, const View& as)
    : result(name, of, of.element, of.extents()),
      view(result.tensor().data, as.shape, bhsd(as.shape), as.dtype, as.device) {}

Backward::Written::Written(Result made, const Tensor& of, AxisOrder layout)
    : result(std::move(made)), view(mutable_view_of(result.tensor(), placed_in(layout, result.tensor()))) {
  check_same_rank(result.tensor(), of);
}

Backward::Backward(const Arguments& a, const nb::kwargs& keywords)
    : question_(a.q, a.k, a.v, keywords, Caller::backward) {
  take_saved(a, Where::any);
  make_room(read_by(a.by), a.into);
}

Backward::Backward(const Arguments& a, const nb::kwargs& keywords, const Question::Whole& whole)
    : question_(a.q, a.k, a.v, keywords, whole) {
  take_saved(a, Where::cpu);  // where ranks share
  make_room(read_by(a.by), a.into);
}

void Backward::take_saved(const Arguments& a, Where where) {
  const auto read = [&](const char* name, nb::handle object) {
    return read_tensor(name, object, Use::read, where);
  };
  out_gradient_ = read("out_gradient", a.out_gradient);
  out_ = read("out", a.out);
  lse_ = read("lse", a.lse);
  const int rank = question_.q().rank;
  for (const Tensor* tensor : {&out_, &out_gradient_}) check_rank(*tensor, rank, rank);
  check_rank(lse_, rank - 1, rank - 1);
  if (a.lse_gradient.is_none()) return;
  lse_gradient_ = read("lse_gradient", a.lse_gradient);
  check_rank(lse_gradient_, rank - 1, rank - 1);
}

void Backward::write(std::size_t which, const Tensor& of, const View& as) {
  written_[which].emplace(arguments[which], of, as);
}

void Backward::make_room(const std::array<bool, 5>& wanted, nb::handle into) {
  const Choices& choices = question_.choices();
  const std::array tensors{&question_.q(), &question_.k(), &question_.v()};
  const std::array<nb::object, 3> given = read_into(into, wanted);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Tensor& of = *tensors[i];
    if (given[i].is_valid())
      written_[i].emplace(Result(arrays_given[i], given[i]), of, choices.layout);
    else if (wanted[i])
      written_[i].emplace(Result(arguments[i], of, of.element, of.extents()), of, choices.layout);
  }
  if (wanted[3]) {
    const Tensor& bias = held(choices, "bias");
    write(3, bias, *choices.options.bias);
  }
  if (wanted[4]) {
    const Tensor& sink = held(choices, "sink");
    write(4, sink, *choices.options.sink);
  }
}

Saved Backward::saved() const {
  return {view_of(out_, placed_in(question_.choices().layout, out_)), view_of(lse_, one_per_row(lse_))};
}

Gradients Backward::gradients() const {
  const auto view = [&](std::size_t i) {
    return written_[i] ? Optional<MutableView>(written_[i]->view) : Optional<MutableView>();
  };
  Gradients made{.out = view_of(out_gradient_, placed_in(question_.choices().layout, out_gradient_)),
                 .q = view(0),
                 .k = view(1),
                 .v = view(2),
                 .bias = view(3),
                 .sink = view(4)};
  if (lse_gradient_.rank > 0) made.log_sum_exp = view_of(lse_gradient_, one_per_row(lse_gradient_));
  return made;
}

nb::object Backward::results() {
  nb::list all;
  for (std::optional<Written>& written : written_)
    if (written) all.append(written->result.object());
  return nb::tuple(all);
}

}  // namespace heed::python
