// SPDX-License-Identifier: Apache-2.0
// Rows of tensors as doubles, and sums of their products that have the bits of the reference's plain loops,
// many at a time: what is left to the reference (S13) would take it long.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/f64/call.hpp"
#include "problem/problem.hpp"
#include "threads/pool.hpp"

namespace heed::api {

// body(first, count) for stretches of at most `each`, on all threads.
template <class Body>
void for_each_stretch(std::int64_t all, std::int64_t each, const Body& body) {
  threads::throwing_parallel_for(static_cast<std::size_t>((all + each - 1) / each), [&](std::size_t n) {
    const std::int64_t first = static_cast<std::int64_t>(n) * each;
    body(first, std::min(each, all - first));
  });
}

// Keys [begin, end).
struct KeyRange {
  std::int64_t begin, end;
};

// What a row holds: NaN, an infinity and no NaN, or numbers alone.
enum class Kind : std::uint8_t { numbers, infinite, nan };

// Some rows, each as wide as vectors need, with zeros at the end.
class WideRows {
 public:
  WideRows(std::int64_t count, std::int64_t dim);

  // Row n becomes the one at (b, h, i); or `some` rows from n on become those from i on.
  void read(std::int64_t n, const View&, std::int64_t b, std::int64_t h, std::int64_t i,
            std::int64_t some = 1);

  std::int64_t count() const { return count_; }
  std::int64_t dim() const { return dim_; }
  std::int64_t width() const { return width_; }
  const double* row(std::int64_t n) const { return numbers_.data() + n * width_; }
  Kind kind(std::int64_t n) const { return kinds_[static_cast<std::size_t>(n)]; }
  bool is_wild(std::int64_t n) const { return kind(n) != Kind::numbers; }
  bool any_wild() const { return any(Kind::infinite) || any(Kind::nan); }
  bool any(Kind kind) const { return std::ranges::find(kinds_, kind) != kinds_.end(); }

 private:
  std::int64_t count_, dim_, width_;
  std::vector<double> numbers_;  // (count, width)
  std::vector<Kind> kinds_;
};

// All rows of a head, transposed, so that a row's products with them lie side by side.
class WideColumns {
 public:
  WideColumns(const View&, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count);

  // Of a row's products, as they are written below.
  std::int64_t step() const { return (count_ + block - 1) / block * block; }
  // to(n, j) = rows(first + n) . row j, n < some, for every j of the range at least.
  void multiply(const WideRows&, std::int64_t first, std::int64_t some, const KeyRange&, double* to) const;

 private:
  static constexpr std::int64_t block = 64;  // rows that lie side by side

  void read_block(const View&, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t number);

  std::int64_t count_, dim_;
  bool are_floats_;
  std::vector<double> numbers_;  // (blocks, dim, block)
};

// Reads all rows of a head, on all threads.
WideRows wide_rows(const View&, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count);

// weight(n, m) at of[n * column + m * term], 0 where n does not see m; and whether it does, likewise. One of
// the strides is 1.
struct PairWeights {
  const double* of;
  const unsigned char* sees;  // may be null where no row is wild
  std::int64_t column, term;
  bool are_few = false;  // most are 0
};
// sums(n, d) += weight(n, m) * rows(m, d) for one m of the range after another that n sees, n < columns. Sums
// have the width of rows.
void add_weighted(const PairWeights&, std::int64_t columns, const WideRows& rows, const KeyRange&,
                  double* sums);

}  // namespace heed::api
