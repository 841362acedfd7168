// SPDX-License-Identifier: Apache-2.0
#include "cuda/prefill/copied_rows.hpp"

#include <cstdint>

#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

std::int64_t whole(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
// Elements of a row that the copy engine takes, and from one to the next: rows that begin on 32 bytes come
// faster.
std::int64_t width_of(std::int64_t dim) { return whole(dim, 8); }
std::int64_t pitch_of(std::int64_t dim) { return whole(dim, 16); }

// Whether keys and values that begin on 16 bytes, but not on 32, are read so often that copies of them on 32
// pay: by 8192 queries of a KV head and more. Of 4096 tokens, 32 heads over 8, 104 dimensions take 226 us
// instead of 242, and 72 take 196 instead of 206; four sequences of 1024 would take 86 instead of 82 (H200,
// November 2026).
bool is_read_often(const Call& c, const Extents& extents, const Tensor& t, std::int64_t dim) {
  constexpr std::int64_t min_queries = 8192, min_keys = 1024, max_bytes = 256 << 20;
  const auto lies_on_32_bytes = [](std::int64_t stride) { return stride % 16 == 0; };
  return dim % 16 != 0 && c.queries >= min_copied_queries && c.queries * c.group() >= min_queries &&
         extents.key_rows >= min_keys && extents.key_rows <= max_copied_rows &&
         extents.query_rows <= max_copied_rows && c.batch <= max_copied_batch &&
         c.batch * c.kv_heads * extents.key_rows * pitch_of(dim) * 2 <= max_bytes &&
         !(lies_on_32_bytes(t.stride.length) && lies_on_32_bytes(t.stride.heads) &&
           lies_on_32_bytes(t.stride.batch) && reinterpret_cast<std::uintptr_t>(t.data) % 32 == 0);
}

}  // namespace

// A cache's rows are gathered; their width is the cache's.
CopiedRows::CopiedRows(Call& c, const Extents& extents) {
  if (c.cached && (c.dim != width_of(c.dim) || c.value_dim != width_of(c.value_dim))) return;
  add(c, &Call::q, {c.batch, c.heads, extents.query_rows, c.dim}, false);
  add(c, &Call::out, {c.batch, c.heads, extents.query_rows, c.value_dim}, false);
  if (c.cached) return;
  add(c, &Call::k, {c.batch, c.kv_heads, extents.key_rows, c.dim}, is_read_often(c, extents, c.k, c.dim));
  add(c, &Call::v, {c.batch, c.kv_heads, extents.key_rows, c.value_dim},
      is_read_often(c, extents, c.v, c.value_dim));
  c.dim = width_of(c.dim), c.value_dim = width_of(c.value_dim);
}

// Heads and entries that share their rows share the copy.
void CopiedRows::add(Call& c, Tensor Call::* tensor, const ArrayShape& all, bool is_worth_it) {
  Tensor& t = c.*tensor;
  const std::int64_t pitch = pitch_of(all.dim);
  if (is_mappable(t) && width_of(all.dim) == all.dim && !is_worth_it) return;
  ArrayShape shape = all;
  if (t.stride.batch == 0) shape.batch = 1;
  if (t.stride.heads == 0) shape.heads = 1;
  copies_.push_back({tensor, t, shape, bytes_});
  bytes_ += whole(shape.batch * shape.heads * shape.length * pitch * 2, 256);
  t.data = nullptr;
  t.stride = {t.stride.batch == 0 ? 0 : shape.heads * shape.length * pitch,
              t.stride.heads == 0 ? 0 : shape.length * pitch, pitch, 1};
}

Call CopiedRows::bring(const Call& c, std::byte* memory, Stream stream) const {
  Call brought = c;
  for (const Copy& copy : copies_) {
    (brought.*copy.tensor).data = memory + copy.at;
    if (copy.tensor != &Call::out)
      launch_copy_rows(copy.callers, brought.*copy.tensor, copy.shape, width_of(copy.shape.dim), stream);
  }
  return brought;
}

void CopiedRows::fetch(const Call& c, Stream stream) const {
  for (const Copy& copy : copies_)
    if (copy.tensor == &Call::out) launch_copy_rows(c.out, copy.callers, copy.shape, copy.shape.dim, stream);
}

}  // namespace heed::cuda
