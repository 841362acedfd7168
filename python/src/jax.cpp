// SPDX-License-Identifier: Apache-2.0
// attention() and attention_backward() as XLA calls them, on the CPU and on CUDA devices: on a thread of
// XLA's, without Python, in buffers of XLA's, and on a device on XLA's stream. heed/jax.py has brought every
// array to its full number of axes and says their names in the attribute "arrays".
#if defined(HEED_HAS_CUDA)
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "docs.hpp"
#include "heed/gradient.hpp"
#include "heed/option_list.hpp"
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

// Where a call runs. Its arrays lie there.
struct Place {
  Device device = Device::cpu;
  void* stream = nullptr;  // a cudaStream_t

  MutableView view(const xla::Buffer& buffer, Order order) const {
    const Shape shape = shape_of(buffer, order);
    return {buffer.data, shape, order == Order::bshd ? bshd(shape) : bhsd(shape), dtype_of(buffer), device};
  }
  BoolView bool_view(const xla::Buffer& buffer) const {
    if (buffer.type != xla::boolean) throw Error(Error::dtype, "a mask that is not of booleans");
    const Shape shape = shape_of(buffer, Order::bhsd);
    return {static_cast<const bool*>(buffer.data), shape, bhsd(shape), device};
  }
};

#if defined(HEED_HAS_CUDA)
void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw Error(Error::device, std::string(call) + ": " + cudaGetErrorString(error));
}
void begin_copy(void* into, const void* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(into, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
}
void wait_for(void* stream) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}
#else
void begin_copy(void*, const void*, std::size_t, void*) {
  throw Error(Error::device, "q.device: cuda, but this build has no CUDA backend");
}
void wait_for(void*) {}
#endif

// What the CPU reads of a call: counts of tokens, documents, slopes and the seed. A CUDA device's are copied,
// and the call waits for them.
class Lists {
 public:
  Lists(const Arguments& arguments, const Place& place) : arguments_(arguments) {
    if (place.device == Device::cuda) bring(place.stream);
  }
  Lists(const Lists&) = delete;
  Lists& operator=(const Lists&) = delete;

  bool has(std::string_view name) const { return arguments_.find(name); }

  template <class T>
  std::span<const T> get(std::string_view name, xla::Type type) const {
    const xla::Buffer* const buffer = arguments_.find(name);
    if (!buffer) return {};
    if (buffer->type != type)
      throw Error(Error::dtype, std::string(name) + ": has element type " + std::to_string(buffer->type) +
                                    " of XLA's, and " + std::to_string(type) + " is wanted");
    const auto brought = std::ranges::find(brought_, buffer, &Brought::buffer);
    const void* const data = brought == brought_.end() ? buffer->data : memory_.data() + brought->first_byte;
    return {static_cast<const T*>(data), bytes_of_list(*buffer) / sizeof(T)};
  }
  std::span<const std::int32_t> integers(std::string_view name) const {
    return get<std::int32_t>(name, xla::i32);
  }
  std::vector<std::int64_t> wide(std::string_view name) const {
    const std::span<const std::int32_t> entries = integers(name);
    return {entries.begin(), entries.end()};
  }

 private:
  struct Brought {
    const xla::Buffer* buffer;
    std::size_t first_byte;
  };

  // Elements of every list have 4 bytes.
  static std::size_t bytes_of_list(const xla::Buffer& buffer) {
    if (buffer.type != xla::i32 && buffer.type != xla::u32 && buffer.type != xla::f32)
      throw Error(Error::dtype, "a list has element type " + std::to_string(buffer.type) + " of XLA's");
    std::size_t bytes = 4;
    for (std::int64_t i = 0; i < buffer.rank; ++i) bytes *= static_cast<std::size_t>(buffer.extents[i]);
    return bytes;
  }

  void bring(void* stream) {
    std::size_t bytes = 0;
    for (const char* const name : {"query_starts", "key_starts", "query_lengths", "key_lengths", "document",
                                   "query_document", "alibi", "seed"})
      if (const xla::Buffer* const buffer = arguments_.find(name)) {
        brought_.push_back({buffer, bytes});
        bytes += bytes_of_list(*buffer);
      }
    if (bytes == 0) return;
    memory_.resize(bytes);
    for (const Brought& each : brought_)
      begin_copy(memory_.data() + each.first_byte, each.buffer->data, bytes_of_list(*each.buffer), stream);
    wait_for(stream);
  }

  const Arguments& arguments_;
  std::vector<Brought> brought_{};
  std::vector<std::byte> memory_{};
};

std::optional<Align> align_of(std::string_view word) {
  if (word == "starts") return Align::starts;
  if (word == "ends") return Align::ends;
  return std::nullopt;
}

// What both passes are given. The views are into XLA's buffers, which outlive the call.
class Request {
 public:
  Request(const xla::Call& call, const Place& place)
      : arguments_(call),
        place_(place),
        lists_(arguments_, place),
        order_(arguments_.word("layout") == "bshd" ? Order::bshd : Order::bhsd),
        query_starts_(lists_.wide("query_starts")),
        key_starts_(lists_.wide("key_starts")),
        query_lengths_(lists_.wide("query_lengths")) {
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
  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }

  // Of q, k, v, out and their gradients, in the call's layout; then of what has no other.
  MutableView view(const xla::Buffer& buffer) const { return place_.view(buffer, order_); }
  MutableView plain_view(const xla::Buffer& buffer) const { return place_.view(buffer, Order::bhsd); }
  View view(std::string_view name) const { return view(arguments_.at(name)); }

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
    if (lists_.has("key_lengths")) masks.emplace_back(KeyLengths{lists_.integers("key_lengths")});
    if (lists_.has("document"))
      masks.emplace_back(Document{lists_.integers("document"), align_of(arguments_.word("document_align")),
                                  lists_.integers("query_document")});
    if (const xla::Buffer* const keep = arguments_.find("keep"))
      masks.emplace_back(Keep{place_.bool_view(*keep)});
    if (const xla::Buffer* const hide = arguments_.find("hide"))
      masks.emplace_back(Hide{place_.bool_view(*hide)});
    if (const xla::Buffer* const tree = arguments_.find("tree"))
      masks.emplace_back(Tree{place_.bool_view(*tree)});
  }

  void take_scores() {
    if (const xla::Buffer* const bias = arguments_.find("bias")) options_.bias = plain_view(*bias);
    if (const xla::Buffer* const sink = arguments_.find("sink")) options_.sink = plain_view(*sink);
    if (lists_.has("alibi"))
      options_.alibi = Alibi{lists_.get<float>("alibi", xla::f32), align_of(arguments_.word("alibi_align"))};
    visit_numbers(options_, [&](const OptionText& text, std::optional<double>& number) {
      number = arguments_.number(text.keyword());
    });
    if (const auto probability = arguments_.number("dropout"))
      options_.dropout = Dropout{*probability, seed()};
    if (arguments_.word("head_map") == "tiled") options_.head_map = HeadMap::tiled;
    options_.kernel = arguments_.word("kernel");
    options_.threads = static_cast<int>(arguments_.integer("threads").value_or(0));
    options_.stream = place_.stream;
  }

  // Two words, the low one first.
  std::uint64_t seed() const {
    const std::span<const std::uint32_t> words = lists_.get<std::uint32_t>("seed", xla::u32);
    if (words.size() != 2) throw Error(Error::shape, "seed: is not two words");
    return words[0] | static_cast<std::uint64_t>(words[1]) << 32;
  }

  Arguments arguments_;
  Place place_;
  Lists lists_;
  Order order_;
  std::vector<std::int64_t> query_starts_, key_starts_, query_lengths_;
  Inputs inputs_{};
  Options options_{};
};

const xla::Buffer& result(const xla::Call& call, std::int64_t i) {
  if (i >= call.results.size) throw Error(Error::value, "results: fewer than are computed");
  return *static_cast<const xla::Buffer*>(call.results.entries[i]);
}

void forward(const xla::Call& call, const Place& place) {
  const Request request(call, place);
  Outputs outputs{.out = request.view(result(call, 0))};
  if (call.results.size > 1) outputs.log_sum_exp = request.plain_view(result(call, 1));
  attention(request.inputs(), outputs, request.options());
}

void backward(const xla::Call& call, const Place& place) {
  const Request request(call, place);
  const Arguments& given = request.arguments();
  const Saved saved{request.view("out"), request.plain_view(given.at("lse"))};
  Gradients gradients{.out = request.view("out_gradient")};
  if (const xla::Buffer* const lse = given.find("lse_gradient"))
    gradients.log_sum_exp = request.plain_view(*lse);
  std::string_view names = given.word("by");
  for (std::int64_t i = 0; !names.empty(); ++i) {
    const std::string_view by = take_word(names);
    const xla::Buffer& into = result(call, i);
    if (by == "q") gradients.q = request.view(into);
    if (by == "k") gradients.k = request.view(into);
    if (by == "v") gradients.v = request.view(into);
    if (by == "bias") gradients.bias = request.plain_view(into);
    if (by == "sink") gradients.sink = request.plain_view(into);
  }
  attention_backward(request.inputs(), saved, gradients, request.options());
}

xla::Failure* failure(const xla::Call& call, xla::Code code, const char* sentence) {
  xla::NewFailure asked{sizeof asked, nullptr, sentence, code};
  return call.api->create_failure(&asked);
}

using Compute = void(const xla::Call&, const Place&);

template <Compute compute>
xla::Failure* run(const xla::Call& call, const Place& place) {
  try {
    compute(call, place);
    return nullptr;
  } catch (const Error& refused) {
    return failure(call, xla::invalid_argument, refused.what());
  } catch (const std::exception& raised) {
    return failure(call, xla::internal, raised.what());
  }
}

// Whether XLA asked for what a handler is, and not for its work.
bool answered(const xla::Call& call, std::uint32_t traits) {
  if (!call.extensions || call.extensions->type != xla::metadata_type) return false;
  xla::Metadata& asked = *reinterpret_cast<xla::MetadataExtension*>(call.extensions)->metadata;
  asked.version = {sizeof(xla::Version), nullptr, xla::major_version, xla::minor_version};
  asked.traits = traits;
  return true;
}

template <Compute compute>
xla::Failure* on_cpu(xla::Call* call) {
  return answered(*call, 0) ? nullptr : run<compute>(*call, {});
}

// Launched on XLA's stream. Where nothing is read by the CPU, a call launches the same work whatever its
// arrays hold, in a workspace that lives as long as a graph that captures it: XLA may capture it in a command
// buffer. A call with lists waits for them, which no graph can.
template <Compute compute, std::uint32_t traits>
xla::Failure* on_cuda(xla::Call* call) {
  if (answered(*call, traits)) return nullptr;
  xla::StreamOf asked{sizeof asked, nullptr, call->context, nullptr};
  if (xla::Failure* const failed = call->api->find_stream(&asked)) return failed;
  return run<compute>(*call, {Device::cuda, asked.stream});
}

nb::object capsule(xla::Handler* handler) {
  constexpr const char* name = "xla._CUSTOM_CALL_TARGET";
  return nb::steal(PyCapsule_New(reinterpret_cast<void*>(handler), name, nullptr));
}

nb::dict xla_handlers() {
  nb::dict cpu, cuda, platforms;
  for (const char* const name : {"heed_attention", "heed_attention_with_lists"})
    cpu[name] = capsule(&on_cpu<forward>);
  for (const char* const name : {"heed_attention_backward", "heed_attention_backward_with_lists"})
    cpu[name] = capsule(&on_cpu<backward>);
  cuda["heed_attention"] = capsule(&on_cuda<forward, xla::may_be_captured>);
  cuda["heed_attention_with_lists"] = capsule(&on_cuda<forward, 0>);
  cuda["heed_attention_backward"] = capsule(&on_cuda<backward, xla::may_be_captured>);
  cuda["heed_attention_backward_with_lists"] = capsule(&on_cuda<backward, 0>);
  platforms["cpu"] = cpu;
  platforms["CUDA"] = cuda;
  return platforms;
}

}  // namespace

void define_jax(nb::module_& m) {
  m.def("xla_handlers", &xla_handlers, nb::sig("def xla_handlers() -> dict[str, dict[str, typing.Any]]"),
        xla_handlers_doc);
}

}  // namespace heed::python
