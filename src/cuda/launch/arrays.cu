// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/algorithm/element.cuh"
#include "cuda/algorithm/exp2.cuh"
#include "cuda/launch/arrays.hpp"

namespace heed::cuda {
namespace {

constexpr int threads = 256;

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

// Element n of a shape, the last axis fastest.
struct Place {
  std::int64_t b, h, i, d;
  HEED_DEVICE Place(std::int64_t n, const ArrayShape& s) {
    d = n % s.dim, n /= s.dim;
    i = n % s.length, n /= s.length;
    h = n % s.heads, b = n / s.heads;
  }
};
HEED_DEVICE Row row_at(const Tensor& t, const Place& at) { return row_of(t, at.b, at.h, at.i); }

template <class Body>
HEED_DEVICE void for_own_element(const ArrayShape& shape, const Body& body) {
  const std::int64_t n = block_index() * threads + thread_index();
  if (n < shape.elements()) body(Place(n, shape));
}

__global__ void copy_elements(Tensor from, Tensor into, ArrayShape shape) {
  for_own_element(shape,
                  [&](const Place& at) { write(row_at(into, at), at.d, read(row_at(from, at), at.d)); });
}

__global__ void average_elements(Tensor from, Tensor into, ArrayShape shape, std::int64_t heads) {
  for_own_element(shape, [&](const Place& at) {
    float sum = read(row_at(from, at), at.d);
    for (std::int64_t h = 1; h < heads; ++h) sum = sum + read(row_of(from, at.b, h, at.i), at.d);
    write(row_at(into, at), at.d, sum / static_cast<float>(heads));
  });
}

__global__ void fill_elements(Tensor into, ArrayShape shape, float value) {
  for_own_element(shape, [&](const Place& at) { write(row_at(into, at), at.d, value); });
}

// Two finished results for one row as one, by the rules of softmax/merged_row.hpp.
struct MergedRow {
  double ours, theirs, our_factor, their_factor;

  HEED_DEVICE MergedRow(double our_lse, double their_lse) : ours(our_lse), theirs(their_lse) {
    constexpr double in_base_2 = 1.44269504088896340736;
    const double a = ours * in_base_2, b = theirs * in_base_2, max = a > b || a != a ? a : b;
    our_factor = a < max ? ::exp2(a - max) : 1.0;
    their_factor = b < max ? ::exp2(b - max) : 1.0;
  }
  HEED_DEVICE bool is_ours() const { return theirs == -__builtin_inf(); }
  HEED_DEVICE bool is_theirs() const { return ours == -__builtin_inf(); }
  HEED_DEVICE double out(double our, double their) const {
    if (is_theirs()) return their;
    const double difference = theirs - ours;
    const double sum = difference != difference ? __builtin_nan("") : their_factor + our_factor;
    return (their * their_factor + our * our_factor) / sum;
  }
  HEED_DEVICE double log_sum_exp() const {
    if (is_theirs()) return theirs;
    const double max = ours > theirs || ours != ours ? ours : theirs;
    return max + ::log1p(our_factor < their_factor ? our_factor : their_factor);
  }
};

// One block for each row.
__global__ void merge_rows(FinishedRows into, FinishedRows other, ArrayShape rows, std::int64_t dim) {
  const Place at(block_index(), rows);
  const Row lse = row_at(into.log_sum_exp, at), out = row_at(into.out, at), their = row_at(other.out, at);
  const MergedRow merged(static_cast<double>(read(lse, 0)),
                         static_cast<double>(read(row_at(other.log_sum_exp, at), 0)));
  if (merged.is_ours()) return;
  sync();  // all have read the log-sum-exp
  for (std::int64_t d = thread_index(); d < dim; d += blockDim.x)
    write(out, d,
          static_cast<float>(
              merged.out(static_cast<double>(read(out, d)), static_cast<double>(read(their, d)))));
  if (thread_index() == 0) write(lse, 0, static_cast<float>(merged.log_sum_exp()));
}

// `pairs` has as many entries in its last axis as there are pairs.
__global__ void rotate_pairs(Tensor x, ArrayShape pairs, Rotations turns) {
  for_own_element(pairs, [&](const Place& at) {
    const std::int64_t token = (turns.are_shared ? 0 : at.b * pairs.length) + at.i;
    const Rotation turn = turns.first[token * turns.pairs + at.d];
    const Row row = row_at(x, at);
    const std::int64_t d0 = at.d * turns.next, d1 = d0 + turns.apart;
    const float x0 = read(row, d0), x1 = read(row, d1);
    write(row, d0, x0 * turn.cosine - x1 * turn.sine);
    write(row, d1, x0 * turn.sine + x1 * turn.cosine);
  });
}

}  // namespace

void launch_copy(const Tensor& from, const Tensor& into, const ArrayShape& shape, Stream stream) {
  if (shape.elements() == 0) return;
  copy_elements<<<blocks_for(shape.elements()), threads, 0, stream>>>(from, into, shape);
  check(cudaGetLastError(), "cuda: copy");
}

void launch_average(const Tensor& from, const Tensor& into, const ArrayShape& shape, std::int64_t heads,
                    Stream stream) {
  if (shape.elements() == 0) return;
  average_elements<<<blocks_for(shape.elements()), threads, 0, stream>>>(from, into, shape, heads);
  check(cudaGetLastError(), "cuda: average_heads");
}

void launch_fill(const Tensor& into, const ArrayShape& shape, float value, Stream stream) {
  if (shape.elements() == 0) return;
  fill_elements<<<blocks_for(shape.elements()), threads, 0, stream>>>(into, shape, value);
  check(cudaGetLastError(), "cuda: fill");
}

void launch_merge(const FinishedRows& into, const FinishedRows& other, const ArrayShape& shape,
                  Stream stream) {
  ArrayShape rows = shape;
  rows.dim = 1;
  if (rows.elements() == 0) return;
  merge_rows<<<static_cast<unsigned>(rows.elements()), 64, 0, stream>>>(into, other, rows, shape.dim);
  check(cudaGetLastError(), "cuda: merge");
}

void launch_rotate(const Tensor& x, const ArrayShape& shape, const Rotations& turns, Stream stream) {
  ArrayShape pairs = shape;
  pairs.dim = turns.pairs;
  if (pairs.elements() == 0) return;
  rotate_pairs<<<blocks_for(pairs.elements()), threads, 0, stream>>>(x, pairs, turns);
  check(cudaGetLastError(), "cuda: rotate");
}

}  // namespace heed::cuda
