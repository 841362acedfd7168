// SPDX-License-Identifier: Apache-2.0
#include "api/wide_rows.hpp"

#include <algorithm>
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

}  // namespace

WideRows::WideRows(std::int64_t count, std::int64_t dim)
    : count_(count),
      dim_(dim),
      width_(PageLayout::whole(dim, lanes)),
      numbers_(static_cast<std::size_t>(count * width_)),
      is_wild_(static_cast<std::size_t>(count)) {}

void WideRows::read(std::int64_t n, const View& x, std::int64_t b, std::int64_t h, std::int64_t i,
                    std::int64_t some) {
  const std::vector<double> numbers = read_rows(x, b, h, i, some);
  for (std::int64_t m = 0; m < some; ++m) {
    const double* const from = numbers.data() + m * dim_;
    std::copy_n(from, dim_, numbers_.data() + (n + m) * width_);
    is_wild_[static_cast<std::size_t>(n + m)] =
        std::all_of(from, from + dim_, [](double number) { return std::isfinite(number); }) ? 0 : 1;
  }
}

bool WideRows::any_wild(std::int64_t first, std::int64_t count) const {
  const auto from = is_wild_.begin() + first;
  return std::any_of(from, from + count, [](unsigned char is_wild) { return is_wild != 0; });
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

void WideColumns::multiply(const WideRows& rows, std::int64_t first, std::int64_t some, double* to) const {
  const cpu::F64Kernels& kernels = cpu::best_target().f64;
  if (!are_floats_) std::fill_n(to, some * step(), 0.0);
  for (std::int64_t n = 0; n < step(); n += block)
    (are_floats_ ? kernels.multiply_floats : kernels.add_products)({.a = numbers_.data() + n * dim_,
                                                                    .width = block,
                                                                    .b = {rows.row(first), rows.width(), 1},
                                                                    .columns = some,
                                                                    .terms = dim_,
                                                                    .c = to + n,
                                                                    .c_width = step()});
}

namespace {

// Most weights are 0 where scores are far apart.
bool are_few(const PairWeights& weights, std::int64_t columns, std::int64_t terms) {
  std::int64_t some = 0;
  for (std::int64_t n = 0; n < columns; ++n)
    for (std::int64_t m = 0; m < terms; ++m)
      some += weights.of[n * weights.column + m * weights.term] != 0 ? 1 : 0;
  return some < columns * terms / 4;
}

}  // namespace

void add_weighted(const PairWeights& weights, std::int64_t columns, const WideRows& rows, double* sums) {
  const auto add = [&](std::int64_t n, std::int64_t some, std::int64_t m, std::int64_t terms) {
    cpu::best_target().f64.add_products(
        {.a = rows.row(m),
         .width = rows.width(),
         .b = {weights.of + n * weights.column + m * weights.term, weights.column, weights.term},
         .columns = some,
         .terms = terms,
         .c = sums + n * rows.width()});
  };
  if (!rows.any_wild() && !are_few(weights, columns, rows.count())) return add(0, columns, 0, rows.count());
  // A weight of 0 changes nothing but times an infinity or NaN, and an unseen row is not read (S4, G6).
  for (std::int64_t n = 0; n < columns; ++n) {
    const auto adds = [&](std::int64_t m) {
      const std::int64_t at = n * weights.column + m * weights.term;
      return rows.is_wild(m) ? weights.sees[at] != 0 : weights.of[at] != 0;
    };
    for (std::int64_t m = 0; m < rows.count(); ++m) {
      const std::int64_t first = m;
      while (m < rows.count() && adds(m)) ++m;
      if (m > first) add(n, 1, first, m - first);
    }
  }
}

}  // namespace heed::api
