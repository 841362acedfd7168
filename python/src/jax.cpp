// SPDX-License-Identifier: Apache-2.0
// attention() and attention_backward() as XLA calls them on the CPU: on a thread of XLA's, without Python, in
// buffers of XLA's. heed/jax.py has brought every array to its full number of axes and says their names in
// the attribute "arrays".
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "docs.hpp"
#include "heed/gradient.hpp"
#include "xla_ffi.hpp"

namespace heed::python {

namespace {

namespace nb = nanobind;

// Takes the first of some words; nothing of none.
std::string_view take_word(std::string_view& words) {
  const std::string_view first = words.substr(0, words.find(' '));
  words.remove_prefix(std::min(first.size() + 1, words.size()));
  return first;
}

// The arrays and attributes of one call, by their names. They are few, and looked for without memory of their
// own.
class Arguments {
 public:
  explicit Arguments(const xla::Call& call) : call_(call), names_(word("arrays")) {
    const auto names = names_.empty() ? 0 : std::ranges::count(names_, ' ') + 1;
    if (names != call.arguments.size)
      throw Error(Error::value, "arrays: " + std::to_string(names) + " names for " +
                                    std::to_string(call.arguments.size) + " arrays");
  }

  const xla::Buffer* find(std::string_view name) const {
    std::string_view names = names_;
    for (std::int64_t i = 0; !names.empty(); ++i)
      if (take_word(names) == name) return static_cast<const xla::Buffer*>(call_.arguments.entries[i]);
    return nullptr;
  }
  const xla::Buffer& at(std::string_view name) const {
    if (const xla::Buffer* const buffer = find(name)) return *buffer;
    throw Error(Error::value, std::string(name) + ": is not given");
  }

  std::string_view word(std::string_view name) const {  // empty where it is not given
    const auto* const found = static_cast<const xla::Text*>(attribute(name, xla::text));
    return found ? std::string_view(found->data, found->size) : std::string_view();
  }
  std::optional<double> number(std::string_view name) const { return scalar<double>(name, xla::f64); }
  std::optional<std::int64_t> integer(std::string_view name) const {
    return scalar<std::int64_t>(name, xla::i64);
  }

 private:
  const void* attribute(std::string_view name, int kind) const {
    const xla::Attributes& all = call_.attributes;
    for (std::int64_t i = 0; i < all.size; ++i)
      if (std::string_view(all.names[i]->data, all.names[i]->size) == name && all.kinds[i] == kind)
        return all.values[i];
    return nullptr;
  }

  template <class T>
  std::optional<T> scalar(std::string_view name, int type) const {
    const auto* const found = static_cast<const xla::Scalar*>(attribute(name, xla::scalar));
    if (!found || found->type != type) return std::nullopt;
    T value;
    std::memcpy(&value, found->value, sizeof value);
    return value;
  }

  const xla::Call& call_;
  std::string_view names_;
};

enum class Order : std::uint8_t { bhsd, bshd };

Shape shape_of(const xla::Buffer& buffer, Order order) {
  std::array<std::int64_t, 4> extents{1, 1, 1, 1};
  if (buffer.rank > 4)
    throw Error(Error::shape, "an array of " + std::to_string(buffer.rank) + " axes has more than 4");
  std::copy_n(buffer.extents, buffer.rank, extents.begin());
  if (order == Order::bshd) std::swap(extents[1], extents[2]);
  return {extents[0], extents[1], extents[2], extents[3]};
}

DType dtype_of(const xla::Buffer& buffer) {
  switch (buffer.type) {
    case xla::f32:
      return DType::f32;
    case xla::f16:
      return DType::f16;
    case xla::bf16:
      return DType::bf16;
    case xla::f64:
      return DType::f64;
    default:
      throw Error(Error::dtype, "an element type of XLA's, number " + std::to_string(buffer.type) +
                                    ", is none of float32, float16, bfloat16, float64");
  }
}

MutableView view_of(const xla::Buffer& buffer, Order order) {
  const Shape shape = shape_of(buffer, order);
  return {buffer.data, shape, order == Order::bshd ? bshd(shape) : bhsd(shape), dtype_of(buffer)};
}

BoolView bool_view_of(const xla::Buffer& buffer) {
  if (buffer.type != xla::boolean) throw Error(Error::dtype, "a mask that is not of booleans");
  return {static_cast<const bool*>(buffer.data), shape_of(buffer, Order::bhsd)};
}

template <class T>
std::span<const T> entries_of(const xla::Buffer* buffer, xla::Type type) {
  if (!buffer) return {};
  if (buffer->type != type)
    throw Error(Error::dtype, "an array has element type " + std::to_string(buffer->type) +
                                  " of XLA's, and " + std::to_string(type) + " is wanted");
  std::size_t count = 1;
  for (std::int64_t i = 0; i < buffer->rank; ++i) count *= static_cast<std::size_t>(buffer->extents[i]);
  return {static_cast<const T*>(buffer->data), count};
}

std::vector<std::int64_t> wide(const xla::Buffer* buffer) {
  const std::span<const std::int32_t> entries = entries_of<std::int32_t>(buffer, xla::i32);
  return {entries.begin(), entries.end()};
}

std::optional<Align> align_of(std::string_view word) {
  if (word == "starts") return Align::starts;
  if (word == "ends") return Align::ends;
  return std::nullopt;
}

// What both passes are given. The views are into XLA's buffers, which outlive the call.
class Request {
 public:
  explicit Request(const xla::Call& call)
      : arguments_(call),
        order_(arguments_.word("layout") == "bshd" ? Order::bshd : Order::bhsd),
        query_starts_(wide(arguments_.find("query_starts"))),
        key_starts_(wide(arguments_.find("key_starts"))),
        query_lengths_(wide(arguments_.find("query_lengths"))) {
    inputs_ = {.q = view("q"), .k = view("k"), .v = view("v")};
    inputs_.query_starts = query_starts_;
    inputs_.key_starts = key_starts_;
    inputs_.query_counts = query_lengths_;
    take_masks();
    take_scores();
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  const Arguments& arguments() const { return arguments_; }
  Order order() const { return order_; }
  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }
  bool has_padding() const { return !query_lengths_.empty(); }

  View view(std::string_view name) const { return view_of(arguments_.at(name), order_); }

 private:
  void take_masks() {
    Masks& masks = options_.masks;
    if (const std::string_view causal = arguments_.word("causal"); !causal.empty())
      masks.emplace_back(Causal{align_of(causal)});
    if (const auto left = arguments_.integer("window_left")) {
      masks.emplace_back(Window{*left, arguments_.integer("window_right").value_or(0),
                                align_of(arguments_.word("window_align")),
                                arguments_.integer("front").value_or(0)});
    }
    if (const xla::Buffer* const lengths = arguments_.find("key_lengths"))
      masks.emplace_back(KeyLengths{entries_of<std::int32_t>(lengths, xla::i32)});
    if (const xla::Buffer* const ids = arguments_.find("document"))
      masks.emplace_back(Document{entries_of<std::int32_t>(ids, xla::i32),
                                  align_of(arguments_.word("document_align")),
                                  entries_of<std::int32_t>(arguments_.find("query_document"), xla::i32)});
    if (const xla::Buffer* const keep = arguments_.find("keep"))
      masks.emplace_back(Keep{bool_view_of(*keep)});
    if (const xla::Buffer* const hide = arguments_.find("hide"))
      masks.emplace_back(Hide{bool_view_of(*hide)});
    if (const xla::Buffer* const tree = arguments_.find("tree"))
      masks.emplace_back(Tree{bool_view_of(*tree)});
  }

  void take_scores() {
    if (const xla::Buffer* const bias = arguments_.find("bias")) options_.bias = view_of(*bias, Order::bhsd);
    if (const xla::Buffer* const sink = arguments_.find("sink")) options_.sink = view_of(*sink, Order::bhsd);
    if (const xla::Buffer* const slopes = arguments_.find("alibi"))
      options_.alibi = Alibi{entries_of<float>(slopes, xla::f32), align_of(arguments_.word("alibi_align"))};
    options_.scale = arguments_.number("scale");
    options_.softcap = arguments_.number("softcap");
    if (const auto probability = arguments_.number("dropout"))
      options_.dropout = Dropout{static_cast<float>(*probability), seed()};
    if (arguments_.word("head_map") == "tiled") options_.head_map = HeadMap::tiled;
    options_.kernel = arguments_.word("kernel");
    options_.threads = static_cast<int>(arguments_.integer("threads").value_or(0));
  }

  // Two words, the low one first.
  std::uint64_t seed() const {
    const std::span<const std::uint32_t> words = entries_of<std::uint32_t>(arguments_.find("seed"), xla::u32);
    if (words.size() != 2) throw Error(Error::shape, "seed: is not two words");
    return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
  }

  Arguments arguments_;
  Order order_;
  std::vector<std::int64_t> query_starts_, key_starts_, query_lengths_;
  Inputs inputs_{};
  Options options_{};
};

const xla::Buffer& result(const xla::Call& call, std::int64_t i) {
  if (i >= call.results.size) throw Error(Error::value, "results: fewer than are computed");
  return *static_cast<const xla::Buffer*>(call.results.entries[i]);
}

template <class T>
void fill(const MutableView& rows, T number) {
  std::fill_n(static_cast<T*>(rows.data), rows.shape.elements(), number);
}

// Rows of padding are not written by attention() (S19): as if they saw no key.
void fill_padding(const Outputs& outputs) {
  const MutableView& out = outputs.out;
  std::memset(out.data, 0, static_cast<std::size_t>(out.shape.elements()) * bytes_of(out.dtype));
  if (!outputs.log_sum_exp) return;
  if (outputs.log_sum_exp->dtype == DType::f64)
    fill(*outputs.log_sum_exp, -std::numeric_limits<double>::infinity());
  else
    fill(*outputs.log_sum_exp, -std::numeric_limits<float>::infinity());
}

void forward(const xla::Call& call) {
  const Request request(call);
  Outputs outputs{.out = view_of(result(call, 0), request.order())};
  if (call.results.size > 1) outputs.log_sum_exp = view_of(result(call, 1), Order::bhsd);
  if (request.has_padding()) fill_padding(outputs);
  attention(request.inputs(), outputs, request.options());
}

void backward(const xla::Call& call) {
  const Request request(call);
  const Arguments& given = request.arguments();
  const Saved saved{request.view("out"), view_of(given.at("lse"), Order::bhsd)};
  Gradients gradients{.out = request.view("out_gradient")};
  if (const xla::Buffer* const lse = given.find("lse_gradient"))
    gradients.log_sum_exp = view_of(*lse, Order::bhsd);
  std::string_view names = given.word("by");
  for (std::int64_t i = 0; !names.empty(); ++i) {
    const std::string_view by = take_word(names);
    const xla::Buffer& into = result(call, i);
    if (by == "q") gradients.q = view_of(into, request.order());
    if (by == "k") gradients.k = view_of(into, request.order());
    if (by == "v") gradients.v = view_of(into, request.order());
    if (by == "bias") gradients.bias = view_of(into, Order::bhsd);
    if (by == "sink") gradients.sink = view_of(into, Order::bhsd);
  }
  attention_backward(request.inputs(), saved, gradients, request.options());
}

xla::Failure* failure(const xla::Call& call, xla::Code code, const char* sentence) {
  xla::NewFailure asked{sizeof asked, nullptr, sentence, code};
  return call.api->create_failure(&asked);
}

template <void (*compute)(const xla::Call&)>
xla::Failure* handle(xla::Call* call) {
  if (call->extensions && call->extensions->type == xla::metadata_type) {
    xla::Metadata& asked = *reinterpret_cast<xla::MetadataExtension*>(call->extensions)->metadata;
    asked.version = {sizeof(xla::Version), nullptr, xla::major_version, xla::minor_version};
    asked.traits = 0;
    return nullptr;
  }
  try {
    compute(*call);
    return nullptr;
  } catch (const Error& refused) {
    return failure(*call, xla::invalid_argument, refused.what());
  } catch (const std::exception& raised) {
    return failure(*call, xla::internal, raised.what());
  }
}

nb::object capsule(xla::Handler* handler) {
  constexpr const char* name = "xla._CUSTOM_CALL_TARGET";
  return nb::steal(PyCapsule_New(reinterpret_cast<void*>(handler), name, nullptr));
}

nb::dict xla_handlers() {
  nb::dict handlers;
  handlers["heed_attention"] = capsule(&handle<forward>);
  handlers["heed_attention_backward"] = capsule(&handle<backward>);
  return handlers;
}

}  // namespace

void define_jax(nb::module_& m) {
  m.def("xla_handlers", &xla_handlers, nb::sig("def xla_handlers() -> dict[str, typing.Any]"),
        xla_handlers_doc);
}

}  // namespace heed::python
