// SPDX-License-Identifier: Apache-2.0
// Keys or values to append, of any type and strides, and sequences read back as floats.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "heed/cache.hpp"
#include "heed/error.hpp"
#include "heed/half.hpp"

namespace heed::test {

using Random = std::mt19937_64;

inline std::int64_t draw(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

inline bool one_in(Random& random, std::int64_t n) { return draw(random, 1, n) == 1; }

// Owns its elements. Places between the strides hold NaN, so that a wrong stride shows.
class Tokens {
 public:
  explicit Tokens(Shape shape, DType dtype = DType::f32) : Tokens(shape, dtype, bhsd(shape)) {}
  Tokens(Shape shape, DType dtype, Strides stride) : shape_(shape), stride_(stride), dtype_(dtype) {
    std::int64_t reach = 1;
    reach += (shape.batch + 1) * stride.batch + (shape.heads + 1) * stride.heads +
             (shape.length + 1) * stride.length + (shape.dim + 1) * stride.dim;
    const std::byte nan{0xff};  // in all three types
    bytes_.assign(static_cast<std::size_t>(reach) * bytes_of(dtype), nan);
  }

  static Tokens random(Random& random, Shape shape, DType dtype = DType::f32) {
    Tokens tokens(shape, dtype, one_in(random, 2) ? bhsd(shape) : spread(random, shape));
    tokens.fill([&](const Shape&) { return static_cast<float>(draw(random, -1000, 1000)) / 256.0f; });
    return tokens;
  }

  template <class Value>
  void fill(const Value& value) {
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      for (std::int64_t h = 0; h < shape_.heads; ++h)
        for (std::int64_t t = 0; t < shape_.length; ++t)
          for (std::int64_t d = 0; d < shape_.dim; ++d) set({b, h, t, d}, value(Shape{b, h, t, d}));
  }

  void set(const Shape& at, float x) {
    if (dtype_ == DType::f32) put(at, x);
    if (dtype_ == DType::f16) put(at, from_float<f16>(x));
    if (dtype_ == DType::bf16) put(at, from_float<bf16>(x));
  }
  float get(const Shape& at) const {
    if (dtype_ == DType::f16) return to_float(value<f16>(at));
    if (dtype_ == DType::bf16) return to_float(value<bf16>(at));
    return value<float>(at);
  }

  View view() const { return {bytes_.data(), shape_, stride_, dtype_}; }
  MutableView mutable_view() { return {bytes_.data(), shape_, stride_, dtype_}; }
  const Shape& shape() const { return shape_; }

 private:
  // Heads inside the length, with gaps after the dimensions and between them.
  static Strides spread(Random& random, const Shape& s) {
    const std::int64_t dim = draw(random, 1, 2), heads = s.dim * dim + draw(random, 0, 3);
    const std::int64_t length = s.heads * heads + draw(random, 0, 1);
    return {s.length * length + 1, heads, length, dim};
  }
  std::size_t offset(const Shape& at) const {
    return bytes_of(dtype_) * static_cast<std::size_t>(at.batch * stride_.batch + at.heads * stride_.heads +
                                                       at.length * stride_.length + at.dim * stride_.dim);
  }
  template <class T>
  void put(const Shape& at, T x) {
    std::memcpy(bytes_.data() + offset(at), &x, sizeof x);
  }
  template <class T>
  T value(const Shape& at) const {
    T x;
    std::memcpy(&x, bytes_.data() + offset(at), sizeof x);
    return x;
  }

  Shape shape_;
  Strides stride_;
  DType dtype_;
  std::vector<std::byte> bytes_{};
};

// A sequence as read() gives it, (heads, length, dim) each.
struct Contents {
  std::vector<float> k, v;
  bool operator==(const Contents& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
    };
    return same(k, other.k) && same(v, other.v);
  }
};

inline Contents read(const KvCache& cache, std::int64_t sequence) {
  const KvCacheConfig& c = cache.config();
  const Shape k{1, c.kv_heads, cache.length(sequence), c.dim};
  const Shape v{1, c.kv_heads, cache.length(sequence), *c.value_dim};
  Contents contents{std::vector<float>(static_cast<std::size_t>(k.elements())),
                    std::vector<float>(static_cast<std::size_t>(v.elements()))};
  cache.read(sequence, {contents.k, k}, {contents.v, v});
  return contents;
}

// Everything a caller can see of a cache.
struct Seen {
  std::int64_t sequences, pages;
  std::vector<std::int64_t> lengths{};  // -1: released
  std::vector<Contents> contents{};
  bool operator==(const Seen&) const = default;

  explicit Seen(const KvCache& cache) : sequences(cache.sequences()), pages(cache.pages_in_use()) {
    for (std::int64_t n = 0; n < sequences; ++n) {
      try {
        lengths.push_back(cache.length(n));
        contents.push_back(read(cache, n));
      } catch (const Error&) {
        lengths.push_back(-1);
      }
    }
  }
};

// What a call refuses with: "capacity: cache: ...", the code first; "nothing" if it returns.
template <class Call>
std::string refusal_of(const Call& call) {
  const char* const codes[] = {"shape",   "dtype",       "device",   "value", "ambiguous",
                               "overlap", "unsupported", "capacity", "file",  "busy"};
  try {
    call();
  } catch (const Error& error) {
    return std::string(codes[error.code]) + ": " + error.what();
  }
  return "nothing";
}

// One number for every element, by which a token is known again.
inline Tokens marked(const KvCacheConfig& c, std::int64_t tokens, std::int64_t dim, float mark) {
  Tokens made({1, c.kv_heads, tokens, dim});
  made.fill([&](const Shape& at) { return mark + static_cast<float>(at.length); });
  return made;
}

inline void append_marked(KvCache& cache, std::int64_t sequence, std::int64_t tokens, float mark) {
  const KvCacheConfig& c = cache.config();
  cache.append_to(sequence, marked(c, tokens, c.dim, mark).view(),
                  marked(c, tokens, *c.value_dim, -mark).view());
}

// The mark of every token of the first head, as its keys have it.
inline std::vector<float> marks(const KvCache& cache, std::int64_t sequence) {
  const Contents contents = read(cache, sequence);
  std::vector<float> found;
  for (std::int64_t t = 0; t < cache.length(sequence); ++t)
    found.push_back(contents.k[static_cast<std::size_t>(t * cache.config().dim)]);
  return found;
}

}  // namespace heed::test
