// SPDX-License-Identifier: Apache-2.0
// How numbers and shapes read in a refusal.
#include "refusal/refusal.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>

#include "heed/dtype.hpp"

namespace heed::refusing {

std::string in_words(float number) {
  if (std::isnan(number)) return "nan";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end.ptr};
}

std::string in_words(double number) {
  const auto rounded = static_cast<float>(number);
  if (static_cast<double>(rounded) == number || std::isnan(number)) return in_words(rounded);
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end.ptr};
}

// Piece by piece: at -O3 g++ 12 warns of what it makes of "(" + text.
std::string in_words(const Shape& s) {
  std::string text;
  for (const std::int64_t extent : {s.batch, s.heads, s.length, s.dim}) {
    text += text.empty() ? "(" : ", ";
    text += std::to_string(extent);
  }
  return text += ")";
}

std::string in_words(const Strides& s) { return in_words(Shape{s.batch, s.heads, s.length, s.dim}); }

}  // namespace heed::refusing

// The names of the element types, as sentences and files spell them.

namespace HEED_NAMESPACE {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
  }
  return "unknown";
}

const char* name_of(CacheType type) {
  switch (type) {
    case CacheType::f32:
      return "f32";
    case CacheType::f16:
      return "f16";
    case CacheType::bf16:
      return "bf16";
    case CacheType::int8:
      return "int8";
  }
  return "unknown";
}

}  // namespace HEED_NAMESPACE

// What must hold of an array: by itself before anything is computed from its extents, apart from others, and
// beside them.

namespace heed::refusing {
namespace {

// Every call measures every array, so one pass finds all that can be wrong with extents and strides.
struct Measured {
  bool has_negative, is_too_long;
};

// Too long: elements * bytes, or the reach of the strides, beyond longest_reach. Empty axes count as one
// entry, so that sums and products of extents are safe everywhere, in an empty array as well.
Measured measure(const Argument& a) {
  bool is_negative = false, overflows = false;
  std::int64_t bytes = a.element_bytes, reach = a.element_bytes;
  const auto add_axis = [&](std::int64_t extent, std::int64_t stride) {
    if (extent == 1) return;
    is_negative |= extent < 0 || (extent > 1 && stride < 0);
    if (extent < 1) return;
    std::int64_t step = 0;
    overflows |=
        __builtin_mul_overflow(bytes, extent, &bytes) || __builtin_mul_overflow(extent - 1, stride, &step) ||
        __builtin_mul_overflow(step, a.element_bytes, &step) || __builtin_add_overflow(reach, step, &reach);
  };
  add_axis(a.shape.batch, a.stride.batch);
  add_axis(a.shape.heads, a.stride.heads);
  add_axis(a.shape.length, a.stride.length);
  add_axis(a.shape.dim, a.stride.dim);
  std::uintptr_t end = 0;
  overflows |= __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(a.data),
                                      static_cast<std::uintptr_t>(reach), &end);
  return {is_negative, overflows || bytes > longest_reach || reach > longest_reach};
}

Error too_long(const Argument& a) {
  return refusal(Error::shape, a.name, ": shape ", a.shape, " with strides ", a.stride,
                 " reaches beyond any memory");
}

[[gnu::cold]] Error negative(const Argument& a) {
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] < 0)
      return refusal(Error::shape, a.name, ".", axis_names[i], ": ", extent[i], " is negative");
  std::size_t i = 0;
  while (extent[i] <= 1 || stride[i] >= 0) ++i;
  return refusal(Error::shape, a.name, ".stride.", axis_names[i], ": ", stride[i], " is negative",
                 stride[i] == Strides::not_given ? ", or was not given" : "");
}

void check_kind(const Argument& a) {
  const bool takes_f64 = a.rule.types != Rule::any;
  if (*a.dtype <= (takes_f64 ? DType::f64 : DType::bf16)) return;
  const std::string found =
      *a.dtype == DType::f64 ? "f64" : std::to_string(static_cast<std::int64_t>(*a.dtype));
  throw refusal(Error::dtype, a.name, ".dtype: ", found, " is none of f32, f16, bf16",
                takes_f64 ? ", f64" : "");
}

void check_held(const Argument& a) {
  if (a.held == elements::Held::unknown) return;
  const std::int64_t reached = reach_bytes(a) / a.element_bytes;
  if (reached > a.held)
    throw refusal(Error::shape, a.name, ": shape ", a.shape, " with strides ", a.stride, " reaches over ",
                  reached, " elements, but there are ", a.held);
}

}  // namespace

void check_argument(const Argument& a) {
  if (a.dtype) check_kind(a);
  if (a.device > Device::cuda) throw unknown_device(a.name, a.device);
  const auto [has_negative, is_too_long] = measure(a);
  if (has_negative) throw negative(a);
  if (is_too_long) throw too_long(a);
  if (a.empty()) return;
  if (!a.is_given()) throw refusal(Error::value, a.name, ": not given");
  check_held(a);
  if (a.data == nullptr) throw refusal(Error::value, a.name, ".data: null, but the shape is ", a.shape);
  // Kernels read through pointers to the element type, which an odd address would make undefined.
  if (reinterpret_cast<std::uintptr_t>(a.data) % static_cast<std::uintptr_t>(a.element_bytes) != 0)
    throw refusal(Error::value, a.name, ".data: the address is not a multiple of the element's ",
                  a.element_bytes, " bytes");
}

void check_device(const Argument& a, const char* name, Device wanted) {
  if (a.device != wanted)
    throw refusal(Error::device, a.name, ".device: ", a.device, " is not ", name, ": ", wanted);
}

}  // namespace heed::refusing

namespace HEED_NAMESPACE {

void check_view(const char* name, const View& x) { check_argument({name, x}); }
void check_view(const char* name, const BoolView& x) { check_argument({name, x}); }

}  // namespace HEED_NAMESPACE

// Whether two arrays share a byte, and whether every element of one has a place of its own.
//
// Most pairs are told apart by their byte ranges. Ranges also meet where two views interleave without sharing
// anything: Q and the output as slices of one packed buffer. Then the question is exact: is there an element
// a of one and an element b of the other with -bytes(b) < address(b) - address(a) < bytes(a)? The difference
// of two addresses is a sum of strides times bounded integers, so this is a search over those integers,
// largest stride first, cut off wherever the remaining strides cannot reach the interval or their greatest
// common divisor skips it. Strides of real tensors nest, which leaves one or two candidates per axis; a
// search that exceeds its budget ends in a refusal, never in a guess.

namespace heed::refusing {
namespace {

// Multiples of a stride by an integer in [low, high], all in bytes, and what the strides after this one can
// add.
struct Term {
  std::int64_t stride = 0, low = 0, high = 0;
  std::int64_t rest_low = 0, rest_high = 0, divisor = 0;
};

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

enum class Answer : std::uint8_t { apart, meet, unknown };

class Search {
 public:
  Search(const Argument& a, const Argument& b) {
    add_axes(a, -1);
    add_axes(b, +1);
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
    std::int64_t low = 0, high = 0, divisor = 0;
    for (auto i = static_cast<std::size_t>(count_); i-- > 0;) {
      Term& term = terms_[i];
      term.rest_low = low;
      term.rest_high = high;
      low += term.low * term.stride;
      high += term.high * term.stride;
      term.divisor = divisor = std::gcd(divisor, term.stride);
    }
  }

  // Can the terms add up to something in [first, last]?
  Answer reaches(std::int64_t first, std::int64_t last) {
    return from({terms_.data(), static_cast<std::size_t>(count_)}, first, last);
  }

 private:
  void add_axes(const Argument& a, std::int64_t sign) {
    const Axes extent = axes(a.shape), stride = axes(a.stride);
    for (std::size_t i = 0; i < extent.size(); ++i) {
      const std::int64_t bytes = stride[i] * a.element_bytes, steps = extent[i] - 1;
      if (bytes == 0 || steps == 0) continue;
      const auto end = terms_.begin() + count_;
      const auto term =
          std::find_if(terms_.begin(), end, [bytes](const Term& t) { return t.stride == bytes; });
      if (term == end) ++count_;
      term->stride = bytes;
      (sign < 0 ? term->low : term->high) += sign * steps;
    }
  }

  Answer from(std::span<const Term> terms, std::int64_t first, std::int64_t last) {
    if (terms.empty()) return first <= 0 && last >= 0 ? Answer::meet : Answer::apart;
    if (budget_-- <= 0) return Answer::unknown;
    const Term& term = terms.front();
    if (floor_div(last, term.divisor) * term.divisor < first) return Answer::apart;
    const std::int64_t low = std::max(term.low, ceil_div(first - term.rest_high, term.stride));
    const std::int64_t high = std::min(term.high, floor_div(last - term.rest_low, term.stride));
    for (std::int64_t times = low; times <= high; ++times) {
      const std::int64_t step = times * term.stride;
      if (const Answer answer = from(terms.subspan(1), first - step, last - step); answer != Answer::apart)
        return answer;
    }
    return Answer::apart;
  }

  std::array<Term, 8> terms_{};
  std::ptrdiff_t count_ = 0;
  int budget_ = 10000;
};

}  // namespace

void check_apart(const Argument& output, const Argument& other) {
  if (output.empty() || other.empty()) return;
  const auto a = reinterpret_cast<std::uintptr_t>(output.data),
             b = reinterpret_cast<std::uintptr_t>(other.data);
  if (a + static_cast<std::uintptr_t>(reach_bytes(output)) <= b) return;
  if (b + static_cast<std::uintptr_t>(reach_bytes(other)) <= a) return;
  const auto distance = static_cast<std::int64_t>(std::uint64_t{b} - std::uint64_t{a});
  switch (Search(output, other)
              .reaches(1 - other.element_bytes - distance, output.element_bytes - 1 - distance)) {
    case Answer::apart:
      return;
    case Answer::meet:
      throw refusal(Error::overlap, output.name, ": shares memory with ", other.article, other.name);
    case Answer::unknown:
      throw refusal(Error::overlap, output.name, ": interleaves with ", other.article, other.name,
                    " in a way that cannot be shown to share no memory");
  }
}

// Sorted by stride, every axis must step over all that the smaller ones span; an axis of one entry never
// steps.
void check_own_places(const Argument& a) {
  if (a.empty()) return;
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  std::array<std::size_t, 4> order{3, 2, 1, 0};
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return stride[i] < stride[j]; });
  std::int64_t span = 1;
  for (const std::size_t i : order) {
    if (extent[i] == 1) continue;
    if (stride[i] == 0)
      throw refusal(Error::overlap, a.name, ".stride.", axis_names[i], ": 0 puts ", extent[i],
                    " results in one place");
    if (stride[i] < span)
      throw refusal(Error::overlap, a.name, ".stride.", axis_names[i], ": ", stride[i],
                    " does not step over the ", span, " elements that the axes inside it span");
    span += (extent[i] - 1) * stride[i];
  }
}

namespace {

const char* name_of(Extent e) {
  switch (e) {
    case Extent::one:
      return "1";
    case Extent::batch:
    case Extent::sequences:
      return "batch";
    case Extent::heads:
      return "heads";
    case Extent::queries:
    case Extent::drafted:
      return "queries";
    case Extent::keys:
      return "keys";
    case Extent::value_dim:
      return "value_dim";
    case Extent::model_dim:
      return "model_dim";
  }
  return "unknown";
}

// "(batch, heads, queries, keys)"
std::string in_words(const std::array<Extent, 4>& a) {
  std::string words;
  for (const Extent e : a) words += std::string(words.empty() ? "(" : ", ") + name_of(e);
  return words + ')';
}

bool broadcasts(const Shape& shape, const Shape& target) {
  const Axes extent = axes(shape), wanted = axes(target);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != wanted[i] && extent[i] != 1) return false;
  return true;
}

bool may_be(DType found, Rule::Types types, DType of_q) {
  switch (types) {
    case Rule::any:
    case Rule::any_or_f64:
      return true;
    case Rule::of_q:
      return found == of_q;
    case Rule::of_q_or_f32:
      return found == of_q || found == DType::f32;
    case Rule::f32_or_f64_of_q:
      return found == DType::f32 || (found == DType::f64 && of_q == DType::f64);
  }
  return false;
}

[[gnu::cold]] Error wrong_dtype(const Argument& a, DType of_q) {
  const char *const found = name_of(*a.dtype), *const wanted = name_of(of_q);
  if (a.rule.types == Rule::f32_or_f64_of_q && of_q != DType::f64)
    return refusal(Error::dtype, a.name, ".dtype: ", found, " is not f32");
  if (a.rule.types == Rule::of_q)
    return refusal(Error::dtype, a.name, ".dtype: ", found, " is not q.dtype: ", wanted);
  return refusal(Error::dtype, a.name, ".dtype: ", found, " is neither q.dtype: ", wanted, " nor f32");
}

}  // namespace

void check_alone(std::span<const Argument> arguments) {
  for (const Argument& a : arguments) check_argument(a);
}

void check_extents(const Argument& a, const Extents& extents) {
  if (a.rule.fit == Rule::freely) return;
  const Shape wanted = extents.shape(a.rule.axes);
  if (a.rule.fit == Rule::exactly && a.shape != wanted)
    throw refusal(Error::shape, a.name, ".shape: ", a.shape, " is not ", in_words(a.rule.axes), ": ", wanted);
  if (a.rule.fit == Rule::by_broadcasting && !broadcasts(a.shape, wanted))
    throw refusal(Error::shape, a.name, ".shape: ", a.shape, " does not broadcast to ", in_words(a.rule.axes),
                  ": ", wanted);
}

void check_extents(std::span<const Argument> arguments, const Extents& extents) {
  for (const Argument& a : arguments) check_extents(a, extents);
}

void check_dtypes(std::span<const Argument> arguments, DType of_q) {
  for (const Argument& a : arguments)
    if (a.dtype && !may_be(*a.dtype, a.rule.types, of_q)) throw wrong_dtype(a, of_q);
}

void check_devices(std::span<const Argument> arguments, const char* name, Device wanted) {
  for (const Argument& a : arguments)
    if ((a.dtype || a.device != Device::cpu) && a.device != wanted) check_device(a, name, wanted);
}

void check_overlap(std::span<const Argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& output = arguments[i];
    if (output.rule.use != Rule::written) continue;
    check_own_places(output);
    for (const Argument& earlier : arguments.first(i))
      if (earlier.rule.use == Rule::written) check_apart(output, earlier);
    for (const Argument& input : arguments)
      if (input.rule.use == Rule::read) check_apart(output, input);
  }
}

// Lists of numbers.

void check_starts(const char* name, std::span<const std::int64_t> starts, const char* rows_name,
                  std::int64_t rows) {
  if (starts.front() != 0) throw refusal(Error::value, name, "[0]: ", starts.front(), " is not 0");
  for (std::size_t n = 1; n < starts.size(); ++n)
    if (starts[n] < starts[n - 1])
      throw refusal(Error::value, name, "[", static_cast<std::int64_t>(n), "]: ", starts[n],
                    " is less than the entry before it: ", starts[n - 1]);
  if (starts.back() != rows)
    throw refusal(Error::value, name, ": its last entry ", starts.back(), " is not ", rows_name, ": ", rows);
}

void check_slopes(std::span<const float> slopes, std::int64_t batch, std::int64_t heads) {
  const std::int64_t found = std::ssize(slopes), all = elements::product(batch, heads);
  if (found != heads && found != all)
    throw refusal(Error::shape, "options.alibi: ", found, " slopes are neither one per head: ", heads,
                  " nor one per batch entry and head: ", all);
  for (std::size_t h = 0; h < slopes.size(); ++h)
    if (!std::isfinite(slopes[h]))
      throw refusal(Error::value, "options.alibi.slopes[", static_cast<std::int64_t>(h), "]: ", slopes[h],
                    " is not a finite number");
}

}  // namespace heed::refusing
