// SPDX-License-Identifier: Apache-2.0
#include "cpu/shared_mask.hpp"

#include <algorithm>

#include "threads/pool.hpp"

namespace heed::cpu {
namespace {

constexpr std::int64_t rows_in_word = 32;
constexpr std::int64_t keys_in_line = 64;  // of bytes: as many are turned at a time
constexpr std::int64_t least_uses = 4;     // of a panel, which is read once and written once more
constexpr std::int64_t most_bytes = std::int64_t{64} << 20;
// A bias is written as large as it is, over lines that every core read in the call before, and that is slow:
// with 16 threads one of bf16 takes 1.17 to 1.24 times as long as none if it is turned, 1.20 where it lies;
// with one thread 1.12 and 1.29 (12 heads, 1024 x 64, a Xeon, November 2026). A bit for each element is a
// sixteenth of that.
constexpr std::size_t most_threads_for_bias = 4;

std::int64_t key_words(Type type) {
  if (type == Type::int8) return 1;
  if (type == Type::bf16) return rows_in_word / 2;
  return type == Type::f32 ? rows_in_word : 0;
}

// The only bias or mask of a call, if its scores need nothing else before it; else no data.
Tensor only_mask(const Call& c) {
  const bool is_first = c.softcap == 0 && !c.alibi.of_heads;
  if (is_first && c.bias.data && c.mask_count == 0) return c.bias;
  if (is_first && !c.bias.data && c.mask_count == 1 && !c.masks[0].is_tree) return c.masks[0].where;
  return {};
}

bool is_shared_by_batch(const Call& c, const Tensor& mask) {
  const auto is_as_the_first = [&](const Sequence& s) {
    const Sequence& first = c.sequences[0];
    return s.first_query == first.first_query && s.queries == first.queries && s.keys == first.keys;
  };
  return mask.stride.batch == 0 && std::all_of(c.sequences, c.sequences + c.batch, is_as_the_first);
}

}  // namespace

SharedMask plan_shared_mask(const Call& c, int panel_rows) {
  const Tensor mask = only_mask(c);
  if (c.bias.data && threads::concurrency() > most_threads_for_bias) return {};
  const bool lies_in_rows =
      mask.data && mask.stride.dim == 1 && mask.stride.length != 0 && mask.stride.heads == 0;
  if (!lies_in_rows || panel_rows != rows_in_word || rows_in_word % c.group() != 0) return {};
  SharedMask shared;
  shared.entries = is_shared_by_batch(c, mask) ? 1 : c.batch;
  shared.keys = (c.keys + keys_in_line - 1) / keys_in_line * keys_in_line;
  shared.key_words = key_words(mask.type);
  const std::int64_t queries = c.here < 0 ? c.queries : c.here;
  shared.panels = (queries * c.group() + panel_rows - 1) / panel_rows;
  const bool pays = c.batch * c.kv_heads >= least_uses * shared.entries;
  return pays && shared.size() > 0 && bytes_of(shared) <= most_bytes ? shared : SharedMask{};
}

std::int64_t bytes_of(const SharedMask& shared) {
  return shared.size() * static_cast<std::int64_t>(sizeof(std::uint32_t)) + shared.entries * shared.panels;
}

SharedMask placed(SharedMask shared, void* memory) {
  if (shared.size() == 0) return shared;
  shared.words = static_cast<std::uint32_t*>(memory);
  shared.is_turned = reinterpret_cast<unsigned char*>(shared.words + shared.size());
  return shared;
}

}  // namespace heed::cpu
