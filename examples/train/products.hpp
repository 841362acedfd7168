// SPDX-License-Identifier: Apache-2.0
// The few dense products that a small transformer needs beside its attention. Rows are shared out among
// threads, and no sum is ever split, so that the number of threads changes no bit.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace train {

using Floats = std::vector<float>;

// body(first, end) for parts of [0, count), on as many threads as heed uses.
void share(std::int64_t count, const std::function<void(std::int64_t, std::int64_t)>& body);

struct Extents {
  std::int64_t rows, inputs, outputs;
};

// y(rows, outputs) [+]= x(rows, inputs) * w(inputs, outputs)
void multiply(const Extents&, const float* x, const float* w, float* y);
// dx(rows, inputs) = dy(rows, outputs) * w^T
void multiply_back(const Extents&, const float* dy, const float* w, float* dx);
// dw(inputs, outputs) += x^T * dy
void add_outer(const Extents&, const float* x, const float* dy, float* dw);

}  // namespace train
