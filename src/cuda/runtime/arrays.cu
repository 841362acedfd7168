// SPDX-License-Identifier: Apache-2.0
// Kernels over whole arrays: copies, sums, averages, merged rows, rotations.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "cuda/runtime/kernels.hpp"
#include "cuda/runtime/launch_early.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {
namespace {

constexpr int threads = 256;

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

// Element n of a shape, the last axis fastest.
struct ElementAt {
  std::int64_t b, h, i, d;
  HEED_DEVICE ElementAt(std::int64_t n, const ArrayShape& s) {
    d = n % s.dim, n /= s.dim;
    i = n % s.length, n /= s.length;
    h = n % s.heads, b = n / s.heads;
  }
};
HEED_DEVICE Row row_at(const Tensor& t, const ElementAt& at) { return row_of(t, at.b, at.h, at.i); }

template <class Body>
HEED_DEVICE void for_own_element(const ArrayShape& shape, const Body& body) {
  const std::int64_t n = block_index() * threads + thread_index();
  if (n < shape.elements()) body(ElementAt(n, shape));
}

__global__ void copy_elements(Tensor from, Tensor into, ArrayShape shape) {
  for_own_element(shape,
                  [&](const ElementAt& at) { write(row_at(into, at), at.d, read(row_at(from, at), at.d)); });
}

// A warp has eight rows of a head at a time, so that each lane has eight loads under way; blocks beside each
// other have heads that may lie beside each other. A word is one element, or two where rows begin on 4 bytes.
constexpr int rows_of_warp = 8, rows_of_block = threads / 32 * rows_of_warp;
template <class Word>
__global__ void __launch_bounds__(threads)
    copy_rows(const __grid_constant__ Tensor from, const __grid_constant__ Tensor into, ArrayShape shape,
              int width) {
  constexpr int elements = sizeof(Word) / 2;
  const std::int64_t first =
      std::int64_t{block_in_column()} * rows_of_block + thread_index() / 32 * rows_of_warp;
  const Row read_at = row_of(from, blockIdx.z, block_index(), first),
            write_at = row_of(into, blockIdx.z, block_index(), first);
  const auto* const source = static_cast<const std::uint16_t*>(read_at.data) + read_at.first;
  auto* const target = static_cast<std::uint16_t*>(const_cast<void*>(write_at.data)) + write_at.first;
  const int rows = static_cast<int>(min(rows_of_warp, shape.length - first));
  for (int d = thread_index() % 32 * elements; d < width; d += 32 * elements) {
    Word x[rows_of_warp];
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r)
      x[r] = r < rows && d < shape.dim
                 ? *reinterpret_cast<const Word*>(source + r * from.stride.length + d * read_at.step)
                 : Word{0};
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r)
      if (r < rows) *reinterpret_cast<Word*>(target + r * into.stride.length + d * write_at.step) = x[r];
  }
}

// Whether two neighbouring elements of a row of so many lie in a word.
bool lies_in_4(const Tensor& t, std::int64_t dim) {
  return t.stride.dim == 1 && dim % 2 == 0 && t.stride.length % 2 == 0 && t.stride.heads % 2 == 0 &&
         t.stride.batch % 2 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 4 == 0;
}

__global__ void add_elements(Tensor from, Tensor into, ArrayShape shape) {
  for_own_element(shape, [&](const ElementAt& at) {
    const Row to = row_at(into, at);
    write(to, at.d, read(to, at.d) + read(row_at(from, at), at.d));
  });
}

__global__ void average_elements(Tensor from, Tensor into, ArrayShape shape, std::int64_t heads) {
  for_own_element(shape, [&](const ElementAt& at) {
    float sum = read(row_at(from, at), at.d);
    for (std::int64_t h = 1; h < heads; ++h) sum = sum + read(row_of(from, at.b, h, at.i), at.d);
    write(row_at(into, at), at.d, sum / static_cast<float>(heads));
  });
}

__global__ void fill_elements(Tensor into, ArrayShape shape, float value) {
  for_own_element(shape, [&](const ElementAt& at) { write(row_at(into, at), at.d, value); });
}

// Two finished results for one row as one, by the rules of softmax/state.hpp.
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
  const ElementAt at(block_index(), rows);
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
__global__ void rotate_pairs(Tensor x, ArrayShape pairs, Rotations rotations) {
  for_own_element(pairs, [&](const ElementAt& at) {
    const std::int64_t token = (rotations.are_shared ? 0 : at.b * pairs.length) + at.i;
    const Rotation by = rotations.first[token * rotations.pairs + at.d];
    const Row row = row_at(x, at);
    const std::int64_t d0 = at.d * rotations.next, d1 = d0 + rotations.apart;
    const float x0 = read(row, d0), x1 = read(row, d1);
    write(row, d0, x0 * by.cosine - x1 * by.sine);
    write(row, d1, x0 * by.sine + x1 * by.cosine);
  });
}

// What one launch brings: numbers of pages, to a multiple of 16 bytes, then bytes.
template <int size>
struct Parcel {
  uint4 data[size / 16];
  unsigned long long* pointers;
  std::byte* bytes;
  int page_count, byte_count;
  const unsigned char* first_page;

  static constexpr std::int64_t room_behind(std::int64_t pages) { return size - (pages + 3) / 4 * 16; }
  HEED_DEVICE int pieces() const { return (page_count + 3) / 4 + (byte_count + 15) / 16; }  // of 16 bytes
};

// A piece for each thread, loaded before anything ahead on the stream has ended: only writes wait for it.
template <int size>
__global__ void __launch_bounds__(threads) put(const __grid_constant__ Parcel<size> parcel) {
  launch_dependents();
  const int n = static_cast<int>(block_index()) * threads + thread_index(),
            fours = (parcel.page_count + 3) / 4;
  if (n >= parcel.pieces()) return wait_for_prior_launches();
  // By an address that the compiler cannot follow: it would read the arguments word by word, lane after lane.
  const uint4* data = parcel.data;
  asm volatile("" : "+l"(data));
  const uint4 x = data[n];
  wait_for_prior_launches();
  const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
  if (n < fours) {
    for (int i = 0; i < 4 && 4 * n + i < parcel.page_count; ++i)
      parcel.pointers[4 * n + i] =
          reinterpret_cast<unsigned long long>(parcel.first_page + words[i] * Upload::line);
    return;
  }
  const int at = (n - fours) * 16;
  if (at + 16 <= parcel.byte_count) {
    *reinterpret_cast<uint4*>(parcel.bytes + at) = x;
    return;
  }
  for (int i = 0; at + i < parcel.byte_count; ++i)
    parcel.bytes[at + i] = static_cast<std::byte>(words[i / 4] >> i % 4 * 8);
}

// In launches of up to `size` bytes.
template <int size>
void upload_in(std::byte* to, Upload of, Stream stream) {
  Parcel<size> parcel;
  parcel.pointers = reinterpret_cast<unsigned long long*>(to);
  parcel.bytes = to + pointer_bytes(of.page_count);
  parcel.first_page = of.first_page;
  while (of.page_count > 0 || of.byte_count > 0) {
    const std::int64_t pages = std::min<std::int64_t>(of.page_count, size / 4),
                       bytes = std::min(of.byte_count, Parcel<size>::room_behind(pages)),
                       pieces = (pages + 3) / 4 + (bytes + 15) / 16;
    parcel.page_count = static_cast<int>(pages), parcel.byte_count = static_cast<int>(bytes);
    auto* const data = reinterpret_cast<std::byte*>(parcel.data);
    if (pages > 0) std::memcpy(data, of.pages, static_cast<std::size_t>(4 * pages));
    if (bytes > 0)
      std::memcpy(data + size - Parcel<size>::room_behind(pages), of.bytes, static_cast<std::size_t>(bytes));
    launch_early(put<size>, {blocks_for(pieces), threads}, stream, parcel);
    of.pages += pages, of.page_count -= pages, parcel.pointers += pages;
    of.bytes += bytes, of.byte_count -= bytes, parcel.bytes += bytes;
  }
}

}  // namespace

void launch_copy(const Tensor& from, const Tensor& into, const ArrayShape& shape, Stream stream) {
  if (shape.elements() == 0) return;
  copy_elements<<<blocks_for(shape.elements()), threads, 0, stream>>>(from, into, shape);
  check(cudaGetLastError(), "cuda: copy");
}

void launch_copy_rows(const Tensor& from, const Tensor& into, const ArrayShape& shape, std::int64_t width,
                      Stream stream) {
  if (shape.batch * shape.heads * shape.length == 0) return;
  const bool in_pairs = lies_in_4(from, shape.dim) && lies_in_4(into, width);
  const auto kernel = in_pairs ? copy_rows<std::uint32_t> : copy_rows<std::uint16_t>;
  const std::int64_t blocks = (shape.length + rows_of_block - 1) / rows_of_block;
  kernel<<<dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(blocks),
                static_cast<unsigned>(shape.batch)),
           threads, 0, stream>>>(from, into, shape, static_cast<int>(width));
  check(cudaGetLastError(), "rows into rows");
}

void launch_add(const Tensor& from, const Tensor& into, const ArrayShape& shape, Stream stream) {
  if (shape.elements() == 0) return;
  add_elements<<<blocks_for(shape.elements()), threads, 0, stream>>>(from, into, shape);
  check(cudaGetLastError(), "cuda: add");
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

void launch_rotate(const Tensor& x, const ArrayShape& shape, const Rotations& rotations, Stream stream) {
  ArrayShape pairs = shape;
  pairs.dim = rotations.pairs;
  if (pairs.elements() == 0) return;
  rotate_pairs<<<blocks_for(pairs.elements()), threads, 0, stream>>>(x, pairs, rotations);
  check(cudaGetLastError(), "cuda: rotate");
}

void upload(std::byte* to, const Upload& of, Stream stream) {
  // Launches of few bytes begin sooner, but follow each other. The page tables of 64 sequences of 4096 tokens
  // took 45 us as pointers in nine of them, 12 in two that began when all ahead had ended, and take 1 as
  // numbers in one (H200, November 2026).
  if ((of.page_count + 3) / 4 * 16 + of.byte_count <= 2048)
    upload_in<2048>(to, of, stream);
  else
    upload_in<32512>(to, of, stream);
}

}  // namespace heed::cuda
