// SPDX-License-Identifier: Apache-2.0
#include "api/wide_rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "cache/store.hpp"
#include "cpu/drivers.hpp"

namespace heed::api {
namespace {

constexpr std::int64_t lanes = 8;           // of the widest vectors
constexpr std::int64_t rows_at_once = 256;  // that a thread reads

// Rows from (b, h, i) on, packed.
std::vector<double> read_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t i,
                              std::int64_t count) {
  const auto size = static_cast<std::size_t>(count * x.shape.dim);
  if (size == 0) return {};
  const std::int64_t first = b * x.stride.batch + h * x.stride.heads + i * x.stride.length;
  const void* const data =
      static_cast<const std::byte*>(x.data) + first * static_cast<std::int64_t>(bytes_of(x.dtype));
  if (x.dtype != DType::f64) {
    std::vector<float> floats(size);
    cache::widen({data, x.dtype, x.stride.length, x.stride.dim}, {count, x.shape.dim}, floats.data());
    return {floats.begin(), floats.end()};
  }
  std::vector<double> numbers;
  numbers.reserve(size);
  for (std::int64_t n = 0; n < count; ++n)
    for (std::int64_t d = 0; d < x.shape.dim; ++d)
      numbers.push_back(static_cast<const double*>(data)[n * x.stride.length + d * x.stride.dim]);
  return numbers;
}

Kind kind_of(const double* numbers, std::int64_t count) {
  bool has_nan = false, is_wild = false;
  for (std::int64_t n = 0; n < count; ++n) {
    has_nan |= numbers[n] != numbers[n];
    is_wild |= !(std::abs(numbers[n]) < INFINITY);
  }
  return has_nan ? Kind::nan : is_wild ? Kind::infinite : Kind::numbers;
}

}  // namespace

WideRows::WideRows(std::int64_t count, std::int64_t dim)
    : count_(count),
      dim_(dim),
      width_(PageLayout::whole(dim, lanes)),
      numbers_(static_cast<std::size_t>(count * width_)),
      kinds_(static_cast<std::size_t>(count)) {}

void WideRows::read(std::int64_t n, const View& x, std::int64_t b, std::int64_t h, std::int64_t i,
                    std::int64_t some) {
  const std::vector<double> numbers = read_rows(x, b, h, i, some);
  for (std::int64_t m = 0; m < some; ++m) {
    const double* const from = numbers.data() + m * dim_;
    std::copy_n(from, dim_, numbers_.data() + (n + m) * width_);
    kinds_[static_cast<std::size_t>(n + m)] = kind_of(from, dim_);
  }
}

WideRows wide_rows(const View& x, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count) {
  WideRows rows(count, x.shape.dim);
  for_each_stretch(count, rows_at_once,
                   [&](std::int64_t n, std::int64_t some) { rows.read(n, x, b, h, first + n, some); });
  return rows;
}

WideColumns::WideColumns(const View& x, std::int64_t b, std::int64_t h, std::int64_t first,
                         std::int64_t count)
    : count_(count),
      dim_(x.shape.dim),
      are_floats_(x.dtype != DType::f64),
      numbers_(static_cast<std::size_t>(PageLayout::whole(count, block) * dim_)) {
  static_assert(rows_at_once % block == 0);
  for_each_stretch(count, rows_at_once, [&](std::int64_t n, std::int64_t some) {
    for (std::int64_t end = n + some; n < end; n += block) read_block(x, b, h, first + n, n / block);
  });
}

void WideColumns::read_block(const View& x, std::int64_t b, std::int64_t h, std::int64_t first,
                             std::int64_t number) {
  const std::int64_t some = std::min(block, count_ - number * block);
  const std::vector<double> rows = read_rows(x, b, h, first, some);
  double* to = numbers_.data() + number * dim_ * block;
  for (std::int64_t d = 0; d < dim_; ++d, to += block)
    for (std::int64_t n = 0; n < some; ++n) to[n] = rows[static_cast<std::size_t>(n * dim_ + d)];
}

void WideColumns::multiply(const WideRows& rows, std::int64_t first, std::int64_t some, const KeyRange& keys,
                           double* to) const {
  const cpu::F64Kernels& kernels = cpu::best_target().f64;
  if (!are_floats_) std::fill_n(to, some * step(), 0.0);
  for (std::int64_t n = keys.begin / block * block; n < keys.end; n += block)
    (are_floats_ ? kernels.multiply_floats : kernels.add_products)({.a = numbers_.data() + n * dim_,
                                                                    .width = block,
                                                                    .b = {rows.row(first), rows.width(), 1},
                                                                    .columns = some,
                                                                    .terms = dim_,
                                                                    .c = to + n,
                                                                    .c_width = step()});
}

namespace {

// Weights that are not 0; how many 0 there are in a row is found some at a time.
struct NonZero {
  const double* of;

  bool operator()(std::int64_t place) const { return of[place] != 0; }
  std::int64_t skip(std::int64_t place, std::int64_t count) const {
    constexpr std::int64_t some = 8;
    std::int64_t n = 0;
    for (; n + some <= count; n += some) {
      std::uint64_t bits = 0;
      for (std::int64_t m = 0; m < some; ++m) bits |= std::bit_cast<std::uint64_t>(of[place + n + m]) << 1;
      if (bits != 0) break;
    }
    return n;
  }
};
struct Seen {
  const unsigned char* sees;

  bool operator()(std::int64_t place) const { return sees[place] != 0; }
  static std::int64_t skip(std::int64_t, std::int64_t) { return 0; }
};

class WeightedSum {
 public:
  WeightedSum(const PairWeights& weights, const WideRows& rows, double* sums)
      : weights_(weights), rows_(rows), sums_(sums), add_products_(cpu::best_target().f64.add_products) {}

  // Every pair of columns [n, n + columns) and rows [m, m + terms).
  void add(std::int64_t n, std::int64_t columns, std::int64_t m, std::int64_t terms) const {
    add_products_({.a = rows_.row(m),
                   .width = rows_.width(),
                   .b = {weights_.of + place(n, m), weights_.column, weights_.term},
                   .columns = columns,
                   .terms = terms,
                   .c = sums_ + n * rows_.width()});
  }
  // The same where needed(place): runs of pairs whose weights lie side by side.
  template <class Needed>
  void add_where(std::int64_t columns, std::int64_t m, std::int64_t terms, const Needed& needed) const {
    if (weights_.term == 1)
      for (std::int64_t n = 0; n < columns; ++n)
        for_each_run(place(n, m), terms, needed,
                     [&](std::int64_t x, std::int64_t count) { add(n, 1, m + x, count); });
    else
      for (const std::int64_t end = m + terms; m < end; ++m)
        for_each_run(place(0, m), columns, needed,
                     [&](std::int64_t n, std::int64_t count) { add(n, count, m, 1); });
  }

 private:
  template <class Needed, class Body>
  static void for_each_run(std::int64_t place, std::int64_t count, const Needed& needed, const Body& body) {
    for (std::int64_t x = 0; x < count; ++x) {
      x += needed.skip(place + x, count - x);
      if (x == count || !needed(place + x)) continue;
      const std::int64_t first = x;
      while (x < count && needed(place + x)) ++x;
      body(first, x - first);
    }
  }
  std::int64_t place(std::int64_t n, std::int64_t m) const { return n * weights_.column + m * weights_.term; }
  const PairWeights& weights_;
  const WideRows& rows_;
  double* sums_;
  void (*add_products_)(const cpu::F64Product&);
};

}  // namespace

void add_weighted(const PairWeights& weights, std::int64_t columns, const WideRows& rows,
                  const KeyRange& range, double* sums) {
  const WeightedSum sum(weights, rows, sums);
  for (std::int64_t m = range.begin; m < range.end;) {
    const std::int64_t first = m;
    while (m < range.end && rows.is_wild(m) == rows.is_wild(first)) ++m;
    // A weight of 0 changes nothing but times an infinity or NaN, and an unseen row is not read (S4, G6).
    if (rows.is_wild(first))
      sum.add_where(columns, first, m - first, Seen{weights.sees});
    else if (weights.are_few)
      sum.add_where(columns, first, m - first, NonZero{weights.of});
    else
      sum.add(0, columns, first, m - first);
  }
}

}  // namespace heed::api
