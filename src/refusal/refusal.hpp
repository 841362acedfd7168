// SPDX-License-Identifier: Apache-2.0
// Builds the sentence of a refusal from its parts. Nothing is built unless a call is refused.
#pragma once
#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "heed/error.hpp"
#include "heed/tensor.hpp"

namespace heed::refusing {

std::string in_words(float);  // the shortest text that reads back as the same number; "nan" has no sign
std::string in_words(double);
std::string in_words(const Shape&);  // "(2, 8, 128, 64)"
std::string in_words(const Strides&);
inline std::string in_words(std::integral auto number) { return std::to_string(number); }
inline const char* in_words(Device device) { return device == Device::cpu ? "cpu" : "cuda"; }
inline const char* in_words(const char* text) { return text; }
inline const std::string& in_words(const std::string& text) { return text; }

// Why something is not done, in words for who asks; empty when nothing speaks against it. Made of a lambda
// that captures two words at the most, it costs next to nothing until then.
class Reason {
 public:
  Reason() {}  // captured_ is left unwritten
  template <class Say>
    requires std::is_invocable_r_v<std::string, const Say&>
  Reason(const Say& say)
      : say_([](const std::byte* captured) -> std::string {
          return (*reinterpret_cast<const Say*>(captured))();
        }) {
    static_assert(sizeof say <= sizeof captured_ && std::is_trivially_copyable_v<Say>);
    std::construct_at(reinterpret_cast<Say*>(captured_), say);
  }
  explicit operator bool() const { return say_ != nullptr; }
  std::string operator()() const { return say_(captured_); }

 private:
  std::string (*say_)(const std::byte*) = nullptr;
  alignas(std::int64_t) std::byte captured_[2 * sizeof(std::int64_t)];
};

template <class... Parts>
[[nodiscard, gnu::cold, gnu::noinline]] Error refusal(Error::Code code, const Parts&... parts) {
  std::string sentence;
  ((sentence += in_words(parts)), ...);
  return {code, sentence};
}

// A device that is none: a number beyond those of the enumeration.
inline Error unknown_device(const char* name, Device device) {
  return refusal(Error::device, name, ".device: ", static_cast<std::int64_t>(device),
                 " is none of cpu, cuda");
}

// One array of a call under the name its refusals use, whatever its type: q, out, a bias, a boolean mask; and
// what is refused of it before anything is believed about it. Each check throws Error or changes nothing.

// The extents that a call's arrays must agree in.
enum class Extent : std::uint8_t {
  one,
  batch,      // of the arrays
  sequences,  // as many as the batch, or packed in one entry of it
  heads,
  queries,
  drafted,  // queries of the longest sequence
  keys,
  value_dim,
  model_dim
};

// What is asked of an array beside others.
struct Rule {
  enum Use : std::uint8_t { read, written };
  enum Fit : std::uint8_t { freely, exactly, by_broadcasting };
  enum Types : std::uint8_t { any, any_or_f64, of_q, of_q_or_f32, f32_or_f64_of_q };  // any: none of f64

  Use use = read;
  Fit fit = freely;
  std::array<Extent, 4> axes{};
  Types types = any;
};

struct Argument {
  const char* name;
  const void* data;
  Shape shape;
  Strides stride;
  std::int64_t element_bytes;
  std::optional<DType> dtype{};  // of numbers that are computed with
  Device device = Device::cpu;
  Rule rule{};
  std::int64_t held = elements::Held::unknown;  // elements, where what it was made of knew
  const char* article = "";  // "the " keep mask, where the sentence of another argument names it

  template <class Memory>
  Argument(const char* n, const BasicView<Memory>& v, const Rule& r = {}, const char* the = "")
      : name(n),
        data(v.data),
        shape(v.shape),
        stride(v.stride),
        element_bytes(static_cast<std::int64_t>(bytes_of(v.dtype))),
        dtype(v.dtype),
        device(v.device),
        rule(r),
        held(v.held.from(v.data)),
        article(the) {}
  Argument(const char* n, const BoolView& v, const Rule& r = {}, const char* the = "")
      : name(n),
        data(v.data),
        shape(v.shape),
        stride(v.stride),
        element_bytes(1),
        device(v.device),
        rule(r),
        held(v.held.from(v.data)),
        article(the) {}
  template <class Count>
  Argument(const char* n, std::span<const Count> counts, const Rule& r = {}, const char* the = "")
      : name(n),
        data(counts.data()),
        shape{.dim = std::ssize(counts)},
        stride{.dim = 1},
        element_bytes(sizeof(Count)),
        rule(r),
        article(the) {}

  bool is_given() const { return data || !(shape == Shape{}) || !(stride == Strides{}); }
  bool empty() const { return shape.batch == 0 || shape.heads == 0 || shape.length == 0 || shape.dim == 0; }
};

using Axes = std::array<std::int64_t, 4>;
constexpr std::array<const char*, 4> axis_names{"batch", "heads", "length", "dim"};
constexpr Axes axes(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }
constexpr Axes axes(const Strides& s) { return {s.batch, s.heads, s.length, s.dim}; }

// No array reaches further than this many bytes, so sums of a few reaches fit in 64 bits.
constexpr std::int64_t longest_reach =
    std::min<std::int64_t>(std::int64_t{1} << 60, std::numeric_limits<std::ptrdiff_t>::max());

// Bytes from the first element to the end of the last one. Of a checked argument that is not empty.
constexpr std::int64_t reach_bytes(const Argument& a) {
  const Shape& n = a.shape;
  const Strides& s = a.stride;
  return a.element_bytes * ((n.batch - 1) * s.batch + (n.heads - 1) * s.heads + (n.length - 1) * s.length +
                            (n.dim - 1) * s.dim + 1);
}

// One array by itself: that its dtype and device exist; extents, strides, reach, data.
void check_argument(const Argument&);
// That it lies on this device: "k.device: cuda is not q.device: cpu".
void check_device(const Argument&, const char* name, Device wanted);

// No element of `output` shares a byte with `other`; slices of one buffer may interleave. For checked
// arguments.
void check_apart(const Argument& output, const Argument& other);
// Every element of an output has a place of its own.
void check_own_places(const Argument& output);

// All arguments of one call as a table that its checks walk, in the order in which their faults are reported.

class Arguments {
 public:
  Arguments() {}  // `nearby_` is left unwritten
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() {}

  template <class Array>
  void add(const char* name, const Array& array, const Rule& rule = {}, const char* article = "") {
    if (count_ == enough) beyond_.assign(nearby_, nearby_ + enough);
    if (count_ < enough)
      std::construct_at(nearby_ + count_, name, array, rule, article);
    else
      beyond_.emplace_back(name, array, rule, article);
    ++count_;
  }
  template <class Array>
  void add_given(const char* name, const std::optional<Array>& array, const Rule& rule) {
    if (array) add(name, *array, rule);
  }
  template <class Count>
  void add_given(const char* name, std::span<const Count> counts) {
    if (!counts.empty()) add(name, counts);
  }

  std::size_t size() const { return count_; }
  std::span<const Argument> all() const { return {count_ > enough ? beyond_.data() : nearby_, count_}; }
  std::span<const Argument> from(std::size_t first) const { return all().subspan(first); }

 private:
  // Only a long list of masks has more; memory is asked for then and not before.
  static constexpr std::size_t enough = 24;
  static_assert(std::is_trivially_destructible_v<Argument>);
  union {
    Argument nearby_[enough];
  };
  std::vector<Argument> beyond_{};
  std::size_t count_ = 0;
};

class Extents {
 public:
  std::int64_t& operator[](Extent e) { return extents_[static_cast<std::size_t>(e)]; }
  std::int64_t operator[](Extent e) const { return extents_[static_cast<std::size_t>(e)]; }
  Shape shape(const std::array<Extent, 4>& a) const {
    return {(*this)[a[0]], (*this)[a[1]], (*this)[a[2]], (*this)[a[3]]};
  }

 private:
  std::array<std::int64_t, static_cast<std::size_t>(Extent::model_dim) + 1> extents_{1};
};

// Every argument by itself.
void check_alone(std::span<const Argument>);
// The extents that its rule asks for: "weights.shape: ... is not (batch, heads, queries, keys): ...".
void check_extents(const Argument&, const Extents&);
void check_extents(std::span<const Argument>, const Extents&);
void check_dtypes(std::span<const Argument>, DType of_q);
// All numbers lie on one device; booleans there or in the CPU's memory.
void check_devices(std::span<const Argument>, const char* name, Device wanted);
// Nothing that is written shares memory with itself, what is written before it in the table, or anything that
// is read. For arguments that were checked alone.
void check_overlap(std::span<const Argument>);

// Starts have one entry more than there are sequences: they begin at 0, never fall and end at `rows`.
void check_starts(const char* name, std::span<const std::int64_t> starts, const char* rows_name,
                  std::int64_t rows);
// That there are as many slopes as heads, or as batch entries and heads, and that all are finite.
void check_slopes(std::span<const float>, std::int64_t batch, std::int64_t heads);

}  // namespace heed::refusing

namespace heed {
using namespace refusing;
}
