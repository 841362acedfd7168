// SPDX-License-Identifier: Apache-2.0
#include "cpu/schedule/stripes.hpp"

#include <algorithm>
#include <memory>

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

Call with_mask_of(const Rows& rows, const Call& c, const Target& target, MaskOfSlot& slot, void* memory) {
  const auto panels_to = [&](std::int64_t query) {
    return ((query - c.first_query) * c.group() + rows_in_word - 1) / rows_in_word;
  };
  const std::int64_t begin = panels_to(rows.first_query), end = panels_to(rows.first_query + rows.queries);
  const std::int64_t owner = c.shared.owner(rows.batch_entry);
  // fault: mask-of-the-rows-before
  const bool has_it = slot.owner == owner && slot.begin <= begin && end <= slot.end;
  if (!has_it) slot.owner = owner, slot.begin = begin, slot.end = end;
  Call with = c;
  with.shared.words = static_cast<std::uint32_t*>(memory);
  with.shared.is_transposed = reinterpret_cast<unsigned char*>(with.shared.words + with.shared.size());
  with.shared.first_panel = slot.begin;
  for (std::int64_t panel = begin; !has_it && panel < end; ++panel)
    target.transpose_mask(with, rows.batch_entry, panel);
  return with;
}

Stripes::Stripes(std::span<const QueryTask> tasks, const SharedMask& mask, std::span<Stripe> room) {
  Stripe* end = room.data();
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    const auto is_of_last = [&](const Rows& rows, const Rows& last) {
      return mask.owner(rows.batch_entry) == mask.owner(last.batch_entry) &&
             rows.first_query == last.first_query;
    };
    const bool goes_on = n > 0 && is_of_last(tasks[n].rows, tasks[n - 1].rows);
    if (goes_on)
      ++end[-1].end;
    else
      std::construct_at(end++, static_cast<std::int64_t>(n), tasks[n]);
  }
  stripes_ = {room.data(), end};
}

// The one with the most work, but short tasks last, so that threads end together.
std::int64_t Stripes::fullest() const {
  std::size_t best = 0;
  const auto is_behind = [&](const Stripe& a, const Stripe& z) {  // whether a thread had better take one of z
    if (a.remaining() <= 0 || z.remaining() <= 0) return a.remaining() <= 0;
    return a.queries != z.queries ? a.queries < z.queries : a.remaining() * a.cost < z.remaining() * z.cost;
  };
  for (std::size_t n = 1; n < stripes_.size(); ++n)
    if (is_behind(stripes_[best], stripes_[n])) best = n;
  return static_cast<std::int64_t>(best);
}

// Threads on different stripes begin with different KV heads: they would wait for the same keys.
std::int64_t Stripes::take(std::int64_t& mine) const {
  for (;; mine = fullest()) {
    if (mine == none) continue;
    Stripe& stripe = stripes_[static_cast<std::size_t>(mine)];
    const std::int64_t n = stripe.taken.fetch_add(1, std::memory_order_relaxed),
                       length = stripe.end - stripe.begin;
    const std::int64_t first = mine * length / static_cast<std::int64_t>(stripes_.size());
    if (n < length) return stripe.begin + (n + first) % length;  // fault: task-taken-twice
  }
}

}  // namespace heed::cpu
