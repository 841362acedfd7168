// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include <algorithm>
#include <thread>

#include "heed/threads.hpp"

namespace train {
namespace {

// y[0..n) += a * x[0..n), for four rows of y at once: a vector of x is then read once for all.
void add_scaled(const float* x, const float* a, std::int64_t step, float* const (&y)[4], std::int64_t n) {
  const float a0 = a[0], a1 = a[step], a2 = a[2 * step], a3 = a[3 * step];
  float *y0 = y[0], *y1 = y[1], *y2 = y[2], *y3 = y[3];
  for (std::int64_t i = 0; i < n; ++i) {
    y0[i] += a0 * x[i];
    y1[i] += a1 * x[i];
    y2[i] += a2 * x[i];
    y3[i] += a3 * x[i];
  }
}

// c(rows, columns) += a(rows, depth) * b(depth, columns), where a(r, k) is a[r * row + k * step].
struct Strided {
  const float* data;
  std::int64_t row, step;
};
void add_product(const Strided& a, const float* b, std::int64_t depth, std::int64_t columns,
                 std::int64_t first, std::int64_t end, float* c) {
  std::int64_t r = first;
  for (; r + 4 <= end; r += 4) {
    float* const rows[4] = {c + r * columns, c + (r + 1) * columns, c + (r + 2) * columns,
                            c + (r + 3) * columns};
    for (std::int64_t k = 0; k < depth; ++k)
      add_scaled(b + k * columns, a.data + r * a.row + k * a.step, a.row, rows, columns);
  }
  for (; r < end; ++r)
    for (std::int64_t k = 0; k < depth; ++k) {
      const float scale = a.data[r * a.row + k * a.step];
      for (std::int64_t i = 0; i < columns; ++i) c[r * columns + i] += scale * b[k * columns + i];
    }
}

}  // namespace

void share(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t parts = std::min<std::int64_t>(heed::num_threads(), (count + 63) / 64);
  if (parts <= 1) return body(0, count);
  const std::int64_t each =
      (count / parts + 3) / 4 * 4;  // whole fours, so that every row is added up one way
  std::vector<std::thread> others;
  for (std::int64_t n = 1; n < parts; ++n)
    others.emplace_back(
        [&body, first = n * each, end = n + 1 == parts ? count : (n + 1) * each] { body(first, end); });
  body(0, each);
  for (std::thread& other : others) other.join();
}

void multiply(const Extents& e, const float* x, const float* w, float* y) {
  share(e.rows, [&](std::int64_t first, std::int64_t end) {
    std::fill(y + first * e.outputs, y + end * e.outputs, 0.0f);
    add_product({x, e.inputs, 1}, w, e.inputs, e.outputs, first, end, y);
  });
}

void multiply_back(const Extents& e, const float* dy, const float* w, float* dx) {
  Floats turned(static_cast<std::size_t>(e.inputs * e.outputs));
  for (std::int64_t i = 0; i < e.inputs; ++i)
    for (std::int64_t o = 0; o < e.outputs; ++o)
      turned[static_cast<std::size_t>(o * e.inputs + i)] = w[i * e.outputs + o];
  multiply({e.rows, e.outputs, e.inputs}, dy, turned.data(), dx);
}

void add_outer(const Extents& e, const float* x, const float* dy, float* dw) {
  share(e.inputs, [&](std::int64_t first, std::int64_t end) {
    add_product({x, 1, e.inputs}, dy, e.rows, e.outputs, first, end, dw);
  });
}

}  // namespace train
