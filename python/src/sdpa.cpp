// SPDX-License-Identifier: Apache-2.0
// heed.scaled_dot_product_attention: PyTorch's arguments and PyTorch's meaning of them. Axes before the last
// three broadcast as they do there; heads are the third from the end.
#include <algorithm>
#include <vector>

#include "bindings.hpp"
#include "choices.hpp"
#include "docs.hpp"
#include "listeners.hpp"
#include "mask_axes.hpp"
#include "result.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

// One array spread over the axes of the whole call: (leading..., heads, rows, columns). Stride 0 repeats.
struct Spread {
  const Tensor* tensor = nullptr;
  std::array<std::int64_t, max_axes> shape{}, stride{};  // right-aligned among `rank`
};

Spread spread(const Tensor& tensor, std::size_t rank) {
  Spread to{&tensor};
  to.shape.fill(1);
  const std::size_t missing = rank - static_cast<std::size_t>(tensor.rank);
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
    to.shape[missing + i] = tensor.shape[i];
    to.stride[missing + i] = tensor.shape[i] == 1 ? 0 : tensor.stride[i];
  }
  return to;
}

// The extent that all agree on, 1 agreeing with everything.
std::int64_t common_extent(std::span<const Spread* const> arrays, std::size_t axis) {
  std::int64_t common = 1;
  const Spread* first = nullptr;
  for (const Spread* array : arrays) {
    const std::int64_t extent = array->shape[axis];
    if (extent == 1 || extent == common) continue;
    if (first)
      throw Error(Error::shape, std::string(array->tensor->name) + ": extent " + std::to_string(extent) +
                                    " does not broadcast with " + std::to_string(common) + " of " +
                                    first->tensor->name);
    common = extent;
    first = array;
  }
  return common;
}

void expand(Spread& array, std::size_t axis, std::int64_t extent) {
  if (array.shape[axis] == extent) return;
  if (array.shape[axis] != 1)
    throw Error(Error::shape, std::string(array.tensor->name) + ": extent " +
                                  std::to_string(array.shape[axis]) + " does not broadcast to " +
                                  std::to_string(extent));
  array.shape[axis] = extent;
}

struct Question {
  Tensor query, key, value;
  std::optional<Tensor> mask{};
  bool is_causal = false, enable_gqa = false;
  Options options{};
};

// The call as a list of axes that every array shares: leading ones to walk over, then the four of a View.
struct Lattice {
  std::size_t rank = 0;  // at least 3
  Spread q, k, v, mask;
  bool has_mask = false;
  std::vector<std::int64_t> out_shape{};
};

void spread_heads(Lattice& lattice, const Question& question) {
  const std::size_t heads = lattice.rank - 3;
  if (question.enable_gqa) return;  // the library groups them, or says that they do not divide
  const Spread* const arrays[] = {&lattice.q, &lattice.k, &lattice.v};
  const std::int64_t extent = common_extent(arrays, heads);
  expand(lattice.q, heads, extent);
  if (lattice.k.shape[heads] == 1 && lattice.v.shape[heads] == 1) return;  // one KV head serves all
  expand(lattice.k, heads, extent);
  expand(lattice.v, heads, extent);
}

Shape scores_of(const Lattice& lattice) {
  const std::size_t i = lattice.rank - 3;
  const auto& q = lattice.q.shape;
  return {lattice.rank > 3 ? q[i - 1] : 1, q[i], q[i + 1], lattice.k.shape[i + 1]};
}

Lattice make_lattice(const Question& question) {
  const int highest = std::max({question.query.rank, question.key.rank, question.value.rank});
  const int lowest = std::min({question.query.rank, question.key.rank, question.value.rank});
  if (lowest < 2) {
    for (const Tensor* tensor : {&question.query, &question.key, &question.value})
      check_rank(*tensor, 2, max_axes);
  }
  Lattice lattice;
  lattice.rank = static_cast<std::size_t>(std::max(highest, 3));
  lattice.q = spread(question.query, lattice.rank);
  lattice.k = spread(question.key, lattice.rank);
  lattice.v = spread(question.value, lattice.rank);
  for (std::size_t axis = 0; axis + 3 < lattice.rank; ++axis) {
    const Spread* const arrays[] = {&lattice.q, &lattice.k, &lattice.v};
    const std::int64_t extent = common_extent(arrays, axis);
    for (Spread* array : {&lattice.q, &lattice.k, &lattice.v}) expand(*array, axis, extent);
  }
  spread_heads(lattice, question);
  lattice.out_shape.assign(lattice.q.shape.begin(), lattice.q.shape.begin() + static_cast<int>(lattice.rank));
  lattice.out_shape.back() = lattice.v.shape[lattice.rank - 1];
  if (question.mask) {
    check_rank(*question.mask, 2, static_cast<int>(lattice.rank));
    check_last_axes(*question.mask, scores_of(lattice));
    lattice.has_mask = true;
    lattice.mask = spread(*question.mask, lattice.rank);
    for (std::size_t axis = 0; axis + 3 < lattice.rank; ++axis)
      expand(lattice.mask, axis, lattice.q.shape[axis]);
  }
  return lattice;
}

// Joins leading axis `axis` with the next where that is one axis for this array too.
bool joins(const Spread& array, std::size_t axis) {
  return array.shape[axis] == 1 || array.stride[axis] == array.stride[axis + 1] * array.shape[axis + 1];
}

void join(Spread& array, std::size_t axis, std::size_t rank) {
  array.shape[axis + 1] *= array.shape[axis];
  std::copy(array.shape.begin() + static_cast<int>(axis) + 1, array.shape.begin() + static_cast<int>(rank),
            array.shape.begin() + static_cast<int>(axis));
  std::copy(array.stride.begin() + static_cast<int>(axis) + 1, array.stride.begin() + static_cast<int>(rank),
            array.stride.begin() + static_cast<int>(axis));
}

// Fewer leading axes mean fewer calls; usually one remains, the batch.
void join_leading_axes(Lattice& lattice, Spread& out) {
  for (std::size_t axis = 0; axis + 4 < lattice.rank;) {
    std::vector<Spread*> arrays{&lattice.q, &lattice.k, &lattice.v, &out};
    if (lattice.has_mask) arrays.push_back(&lattice.mask);
    if (!std::ranges::all_of(arrays, [axis](const Spread* array) { return joins(*array, axis); })) {
      ++axis;
      continue;
    }
    for (Spread* array : arrays) join(*array, axis, lattice.rank);
    --lattice.rank;
  }
}

Placed placed(const Spread& array, std::size_t rank) {
  const std::size_t i = rank - 3;
  const bool has_batch = rank > 3;
  return {{has_batch ? array.shape[i - 1] : 1, array.shape[i], array.shape[i + 1], array.shape[i + 2]},
          {has_batch ? array.stride[i - 1] : 0, array.stride[i], array.stride[i + 1],
           array.shape[i + 2] == 1 ? 1 : array.stride[i + 2]}};
}

template <class Viewed>
Viewed moved(Viewed view, std::int64_t elements, std::size_t bytes) {
  using Data = decltype(view.data);
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  view.data = reinterpret_cast<Data>(address + static_cast<std::uintptr_t>(elements) * bytes);
  return view;
}

std::int64_t offset(const Spread& array, std::span<const std::int64_t> index) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < index.size(); ++i) elements += index[i] * array.stride[i];
  return elements;
}

// One call of the library: everything at one place of the axes that are walked over.
struct Call {
  Inputs inputs;
  Outputs outputs;
  Options options;
};

void set_mask(Options& options, const Question& question, const Spread& mask, const Placed& at,
              std::int64_t elements) {
  const std::size_t bytes = bytes_of(mask.tensor->element);
  if (question.mask->element == Element::boolean)
    options.masks.emplace_back(Keep{moved(bool_view_of(*question.mask, at), elements, bytes)});
  else
    options.bias = moved(view_of(*question.mask, at), elements, bytes);
}

Call call_at(const Question& question, const Lattice& lattice, const Spread& out,
             std::span<const std::int64_t> index) {
  const std::size_t bytes = bytes_of(question.query.element);
  const auto view = [&](const Spread& array) {
    return moved(view_of(*array.tensor, placed(array, lattice.rank)), offset(array, index), bytes);
  };
  Call call{{view(lattice.q), view(lattice.k), view(lattice.v)},
            {moved(mutable_view_of(*out.tensor, placed(out, lattice.rank)), offset(out, index), bytes)},
            question.options};
  if (lattice.has_mask)
    set_mask(call.options, question, lattice.mask, placed(lattice.mask, lattice.rank),
             offset(lattice.mask, index));
  return call;
}

// PyTorch lets K and V have different numbers of heads, each a divisor of Q's. The library does not, so each
// query head is a call of its own; the bits are the same (O1).
void run_head_by_head(const Call& call) {
  const std::int64_t heads = call.inputs.q.shape.heads;
  for (const View* view : {&call.inputs.k, &call.inputs.v})
    if (view->shape.heads == 0 || heads % view->shape.heads != 0)
      throw Error(Error::shape, std::string(view == &call.inputs.k ? "key" : "value") +
                                    ".heads: " + std::to_string(view->shape.heads) +
                                    " does not divide query.heads: " + std::to_string(heads));
  const auto one_head = [heads](auto view, std::int64_t h, std::size_t bytes) {
    if (view.shape.heads != 1) view = moved(view, h / (heads / view.shape.heads) * view.stride.heads, bytes);
    view.shape.heads = 1;
    return view;
  };
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::size_t bytes = heed::bytes_of(call.inputs.q.dtype);
    Options options = call.options;
    if (options.dropout) options.dropout->seed += static_cast<std::uint64_t>(h);  // no two heads drop alike
    for (Mask& mask : options.masks)
      if (auto* keep = std::get_if<Keep>(&mask)) keep->where = one_head(keep->where, h, 1);
    if (options.bias) options.bias = one_head(*options.bias, h, heed::bytes_of(options.bias->dtype));
    heed::attention({one_head(call.inputs.q, h, bytes), one_head(call.inputs.k, h, bytes),
                     one_head(call.inputs.v, h, bytes)},
                    {.out = one_head(call.outputs.out, h, bytes)}, options);
  }
}

void run(const Call& call) {
  if (call.inputs.k.shape.heads == call.inputs.v.shape.heads)
    heed::attention(call.inputs, call.outputs, call.options);
  else
    run_head_by_head(call);
}

// Every place of the leading axes but the batch, one after another.
void walk(const Question& question, const Lattice& lattice, const Spread& out) {
  const std::size_t walked = lattice.rank > 4 ? lattice.rank - 4 : 0;
  std::vector<std::int64_t> index(walked, 0);
  if (std::ranges::any_of(std::span(lattice.q.shape).first(walked), [](auto n) { return n == 0; })) return;
  for (std::uint64_t place = 0;; ++place) {
    Call call = call_at(question, lattice, out, index);
    if (call.options.dropout) call.options.dropout->seed += place << 32;  // no two places drop alike
    run(call);
    std::size_t axis = walked;
    while (axis > 0 && ++index[axis - 1] == lattice.q.shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

// As torch draws it: anew for every call. random.seed() makes it repeatable.
std::uint64_t drawn_seed() {
  return nb::cast<std::uint64_t>(nb::module_::import_("random").attr("getrandbits")(64));
}

void read_mask(Question& question, nb::handle mask) {
  if (mask.is_none()) return;
  if (question.is_causal)
    throw Error(Error::value, "attn_mask: Explicit attn_mask should not be set when is_causal=True");
  question.mask.emplace(read_tensor("attn_mask", mask, Use::read, Where::any));
}

// In the words of PyTorch's arguments, before the library names its own.
void check_elements(const Question& question) {
  dtype_of(question.query);
  const Element element = question.query.element;
  for (const Tensor* tensor : {&question.key, &question.value})
    if (tensor->element != element)
      throw Error(Error::dtype, std::string(tensor->name) + ".dtype: " + name_of(tensor->element) +
                                    " is not that of query: " + name_of(element));
  if (!question.mask) return;
  const Element of_mask = question.mask->element;
  if (of_mask != Element::boolean && of_mask != Element::f32 && of_mask != element)
    throw Error(Error::dtype, std::string("attn_mask.dtype: ") + name_of(of_mask) +
                                  " is neither boolean, nor f32, nor that of query: " + name_of(element));
}

bool is_plain(const Question& question) {
  const auto& [query, key, value] = std::tie(question.query, question.key, question.value);
  if (query.rank != 4 || key.rank != 4 || value.rank != 4 || question.mask) return false;
  return query.shape[0] == key.shape[0] && key.shape[0] == value.shape[0] && query.shape[1] == key.shape[1] &&
         key.shape[1] == value.shape[1];
}

nb::object answer_plain(const Question& question) {
  const Tensor &q = question.query, &v = question.value;
  const std::array<std::int64_t, 4> shape{q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  const Inputs inputs{view_of(q, right_aligned(q)), view_of(question.key, right_aligned(question.key)),
                      view_of(v, right_aligned(v))};
  Result out("out", q, q.element, shape);
  const Outputs outputs{.out = mutable_view_of(out.tensor(), right_aligned(out.tensor()))};
  compute([&] { heed::attention(inputs, outputs, question.options); });
  return out.object();
}

nb::object answer(const Question& question) {
  if (is_plain(question)) return answer_plain(question);
  Lattice lattice = make_lattice(question);
  // A call on (length, dim) has no head axis to return.
  const int rank = std::max({question.query.rank, question.key.rank, question.value.rank});
  dtype_of(question.query);
  Result out("out", question.query, question.query.element, last_axes(lattice.out_shape, rank));
  Spread into = spread(out.tensor(), lattice.rank);
  join_leading_axes(lattice, into);
  compute([&] { walk(question, lattice, into); });
  return out.object();
}

// As PyTorch's function has them.
struct Arguments {
  nb::handle query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa;
};

Question read_question(const Arguments& given) {
  Question question{read_tensor("query", given.query, Use::read, Where::any),
                    read_tensor("key", given.key, Use::read, Where::any),
                    read_tensor("value", given.value, Use::read, Where::any)};
  question.options.stream = current_stream(question.query);
  question.is_causal = read_flag("is_causal", given.is_causal);
  question.enable_gqa = read_flag("enable_gqa", given.enable_gqa);
  read_mask(question, given.attn_mask);
  check_elements(question);
  if (question.is_causal) question.options.masks.emplace_back(Causal{Align::starts});
  if (!given.scale.is_none()) question.options.scale = read_double("scale", given.scale);
  const double drop_probability = dtype_of(question.query) == DType::f64
                                      ? read_double("dropout_p", given.dropout_p)
                                      : read_float("dropout_p", given.dropout_p);
  if (!(drop_probability >= 0 && drop_probability < 1))
    throw Error(Error::value, "dropout_p: " + text_of(given.dropout_p) + " is outside [0, 1)");
  if (drop_probability != 0) question.options.dropout = Dropout{drop_probability, drawn_seed()};
  return question;
}

nb::object scaled_dot_product_attention(nb::handle query, nb::handle key, nb::handle value,
                                        nb::handle attn_mask, nb::handle dropout_p, nb::handle is_causal,
                                        nb::handle scale, nb::handle enable_gqa) {
  return answer(read_question({query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa}));
}

bool is_contiguous(const Tensor& tensor) {
  std::int64_t packed = 1;
  for (auto i = static_cast<std::size_t>(tensor.rank); i-- > 0; packed *= tensor.shape[i])
    if (tensor.shape[i] != 1 && tensor.stride[i] != packed) return false;
  return true;
}

bool is_zero(nb::handle number) {
  const double value = PyFloat_AsDouble(number.ptr());
  if (PyErr_Occurred()) PyErr_Clear();  // and the value is -1
  return value == 0;
}

bool is_watched(const Arguments& given) {
  if (is_pytorch_observed() || is_any_autocast_enabled()) return true;
  for (const nb::handle tensor : {given.query, given.key, given.value})
    if (!is_tensor(tensor) || takes_part(tensor)) return true;
  return takes_part(given.attn_mask) || takes_part(given.scale);
}

// For heed.torch: NotImplemented where PyTorch's dispatcher is to be told, where PyTorch's generator is drawn
// from, where the result would have other strides than PyTorch's, and where there is something to refuse.
nb::object unwatched_scaled_dot_product_attention(nb::handle query, nb::handle key, nb::handle value,
                                                  nb::handle attn_mask, nb::handle dropout_p,
                                                  nb::handle is_causal, nb::handle scale,
                                                  nb::handle enable_gqa) {
  const Arguments given{query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa};
  const nb::object not_implemented = nb::borrow(Py_NotImplemented);
  if (is_watched(given) || !is_zero(dropout_p)) return not_implemented;
  std::optional<Question> question;
  try {
    question.emplace(read_question(given));
  } catch (const Error&) {
    return not_implemented;
  }
  const Tensor& q = question->query;
  const bool is_for_torch = q.element == Element::f64 && q.device != Device::cpu;
  if (!is_contiguous(q) || is_for_torch) return not_implemented;
  return answer(*question);
}

// In the type alone, as PyTorch's own function takes them without a word.
bool has_plain_words(const Arguments& given) {
  const bool has_scale = !given.scale.is_none();
  return given.attn_mask.is_none() && PyBool_Check(given.is_causal.ptr()) &&
         PyBool_Check(given.enable_gqa.ptr()) && PyFloat_Check(given.dropout_p.ptr()) &&
         is_zero(given.dropout_p) && (!has_scale || PyFloat_CheckExact(given.scale.ptr()));
}

bool have_plain_shapes(const Tensor& q, const Tensor& k, const Tensor& v, bool enable_gqa) {
  for (const Tensor* tensor : {&q, &k, &v})
    if (tensor->rank != 4 || tensor->is_empty() || tensor->element != q.element ||
        tensor->device != q.device || tensor->ordinal != q.ordinal)
      return false;
  const bool shares = enable_gqa ? q.shape[1] % k.shape[1] == 0 : q.shape[1] == k.shape[1];
  return shares && q.shape[0] == k.shape[0] && k.shape[0] == v.shape[0] && k.shape[1] == v.shape[1] &&
         k.shape[2] == v.shape[2] && q.shape[3] == k.shape[3];
}

// For heed.torch: whether nobody listens but autograd and autocast, and nothing is to be refused, broadcast
// or drawn.
bool is_plain_drop_in(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                      nb::handle dropout_p, nb::handle is_causal, nb::handle scale, nb::handle enable_gqa) {
  if (!has_plain_words({query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa})) return false;
  if (is_pytorch_observed()) return false;
  for (const nb::handle tensor : {query, key, value})
    if (!is_tensor(tensor) || !has_readable_memory(tensor)) return false;
  try {
    const auto read = [](nb::handle tensor) { return read_tensor("", tensor, Use::copy, Where::any); };
    const Tensor q = read(query), k = read(key), v = read(value);
    const bool is_known =
        q.element == Element::f32 || q.element == Element::bf16 || q.element == Element::f16;
    return is_known && have_plain_shapes(q, k, v, enable_gqa.is(Py_True));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void define_scaled_dot_product_attention(nb::module_& m) {
  m.def("scaled_dot_product_attention", &scaled_dot_product_attention, nb::arg("query").none(),
        nb::arg("key").none(), nb::arg("value").none(), nb::arg("attn_mask") = nb::none(),
        nb::arg("dropout_p").none() = 0.0, nb::arg("is_causal").none() = false, nb::arg("scale") = nb::none(),
        nb::arg("enable_gqa").none() = false, nb::sig(sdpa_signature), sdpa_doc);
  m.def("unwatched_scaled_dot_product_attention", &unwatched_scaled_dot_product_attention,
        nb::arg("query").none(), nb::arg("key").none(), nb::arg("value").none(), nb::arg("attn_mask").none(),
        nb::arg("dropout_p").none(), nb::arg("is_causal").none(), nb::arg("scale").none(),
        nb::arg("enable_gqa").none(), unwatched_sdpa_doc);
  m.def("is_plain_drop_in", &is_plain_drop_in, nb::arg("query").none(), nb::arg("key").none(),
        nb::arg("value").none(), nb::arg("attn_mask").none(), nb::arg("dropout_p").none(),
        nb::arg("is_causal").none(), nb::arg("scale").none(), nb::arg("enable_gqa").none(),
        is_plain_drop_in_doc);
}

}  // namespace heed::python
