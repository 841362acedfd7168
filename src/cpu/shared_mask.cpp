// SPDX-License-Identifier: Apache-2.0
#include "cpu/shared_mask.hpp"

#include <algorithm>

namespace heed::cpu {
namespace {

constexpr std::int64_t rows_in_word = 32;
constexpr std::int64_t keys_in_line = 64;  // of bytes: as many are transposed at a time
constexpr std::int64_t min_uses = 4;       // of a panel, which is read once and written once more
constexpr std::int64_t max_bytes = std::int64_t{64} << 20;

std::int64_t key_words(Type type) {
  if (type == Type::int8) return 1;
  if (type == Type::bf16) return rows_in_word / 2;
  return type == Type::f32 ? rows_in_word : 0;
}

// The only bias or mask of a call, if its scores need nothing else before it; else no data.
Tensor only_mask(const Call& c) {
  const bool is_first = !c.softcap && !c.alibi.of_heads;
  if (is_first && c.bias.data && c.mask_count == 0) return c.bias;
  if (is_first && !c.bias.data && c.mask_count == 1 && !c.masks[0].is_tree) return c.masks[0].where;
  return {};
}

// Whether the rows and keys of a batch entry are those of every other.
bool are_alike(const Call& c) {
  return std::all_of(c.sequences, c.sequences + c.batch, [&](const Sequence& s) {
    const Sequence& first = c.sequences[0];
    return s.queries == first.queries && s.keys == first.keys && s.first_query == first.first_query;
  });
}

}  // namespace

SharedMask plan_shared_mask(const Call& c, int panel_rows, std::int64_t rows, std::size_t slots) {
  const Tensor mask = only_mask(c);
  const bool lies_in_rows =
      mask.data && mask.stride.dim == 1 && mask.stride.length != 0 && mask.stride.heads == 0;
  if (!lies_in_rows || panel_rows != rows_in_word || rows_in_word % c.group() != 0) return {};
  SharedMask shared;
  shared.panels = (rows + panel_rows - 1) / panel_rows;
  shared.keys = (c.keys + keys_in_line - 1) / keys_in_line * keys_in_line;
  shared.key_words = key_words(mask.type);
  // fault: mask-of-the-first-entry, mask-of-the-first-sequence
  shared.is_of_batch = mask.stride.batch == 0 && are_alike(c);
  const std::int64_t uses = c.kv_heads * (shared.is_of_batch ? c.batch : 1);
  const bool pays = uses >= min_uses && shared.size() > 0;
  return pays && bytes_of(shared) * static_cast<std::int64_t>(slots) <= max_bytes ? shared : SharedMask{};
}

std::int64_t bytes_of(const SharedMask& shared) {
  return shared.size() * static_cast<std::int64_t>(sizeof(std::uint32_t)) + shared.panels;
}

Call with_mask_of(const Rows& rows, const Call& c, const Target& target, TransposedPanels& transposed,
                  void* memory) {
  const auto panels_to = [&](std::int64_t query) {
    return ((query - c.first_query) * c.group() + rows_in_word - 1) / rows_in_word;
  };
  const std::int64_t begin = panels_to(rows.first_query), end = panels_to(rows.first_query + rows.queries);
  const std::int64_t owner = c.shared.owner(rows.batch_entry);
  // fault: mask-of-the-rows-before
  const bool is_there = transposed.owner == owner && transposed.begin <= begin && end <= transposed.end;
  if (!is_there) transposed = {owner, begin, end};
  Call with = c;
  with.shared.words = static_cast<std::uint32_t*>(memory);
  with.shared.is_transposed = reinterpret_cast<unsigned char*>(with.shared.words + with.shared.size());
  with.shared.first_panel = transposed.begin;
  for (std::int64_t panel = begin; !is_there && panel < end; ++panel)
    target.transpose_mask(with, rows.batch_entry, panel);
  return with;
}

}  // namespace heed::cpu
