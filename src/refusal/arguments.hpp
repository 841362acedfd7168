// SPDX-License-Identifier: Apache-2.0
// All arguments of one call as a table that its checks walk, in the order in which their faults are reported.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "refusal/argument.hpp"

namespace heed::refusing {

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

}  // namespace heed::refusing
