// SPDX-License-Identifier: Apache-2.0
// Masks are types, so their polarity is in the word. A query sees a key only if every mask in the list lets
// it (S4).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "heed/export.hpp"
#include "heed/few.hpp"
#include "heed/tensor.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// Where the two sequences coincide: first with first, or last with last.
enum class Align : std::uint8_t { starts, ends };

// Query i sees key j when j <= i + offset; offset is 0 (starts) or keys - queries (ends). Must be said when
// they differ (S9).
struct Causal {
  std::optional<Align> align{};
};

// Inclusive counts of keys to the left and right of the query's own position (S10). The first `front` keys
// are seen though they lie further left ("attention sinks").
struct Window {
  std::int64_t left = 0, right = 0;
  std::optional<Align> align{};
  std::int64_t front = 0;
  // A window of `total` keys that ends at the query itself, as other systems count it.
  static Window from_total(std::int64_t total) { return {.left = total - 1}; }
};

// Padding: in batch entry b, keys [valid[b], keys) are unseen (S11). One count per batch entry.
struct KeyLengths {
  Borrowed<std::int32_t> valid{};
};

// Sequences packed in one row: query i sees key j only where both are of one document (S20). A number for
// every key, (batch, keys) or (keys) for all batch entries. A query is of the document of the key it stands
// beside, as `align` says; or of the one that query_ids name, (batch, queries) or (queries).
struct Document {
  Borrowed<std::int32_t> ids{};
  std::optional<Align> align{};
  Borrowed<std::int32_t> query_ids{};
};

struct Keep {
  BoolView where;  // true attends
};
struct Hide {
  BoolView where;  // true is ignored
};

// Speculative decoding: among the last `queries` keys, the drafted tokens, each query sees those that `where`
// marks, (batch, heads, queries, queries); all earlier keys are seen (S18).
struct Tree {
  BoolView where;  // true attends
};

using Mask = std::variant<Causal, Window, KeyLengths, Document, Keep, Hide, Tree>;
using Masks = Few<Mask, 4>;

// One of them, where somebody means options.
template <class M>
concept OneMask = std::is_convertible_v<const M&, Mask>;

// A boolean matrix that owns its memory and knows its polarity: true is masked, as the mask builders return
// it. It converts to Hide, which views it and must not outlive it.
struct HideMatrix {
  Shape shape{};  // (batch, heads, queries, keys); an extent of 1 broadcasts
  std::unique_ptr<bool[]> hidden{};
  operator Hide() const& { return {BoolView{hidden.get(), shape}}; }
  operator Hide() const&& = delete;
  bool at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return hidden[static_cast<std::size_t>(((b * shape.heads + h) * shape.length + i) * shape.dim + j)];
  }
};

// tokens is (batch, length), row after row. The result is (batch, 1, 1, length), true where a token is
// padding. A batch of 0 rows has none to tell their length: (0, 1, 1, 0).
HEED_API HideMatrix padding_mask(std::span<const std::int64_t> tokens, std::int64_t batch,
                                 std::int64_t pad_id = 0);
// (1, 1, size, size), true strictly above the diagonal.
HEED_API HideMatrix look_ahead_mask(std::int64_t size);
// True where either hides; extents must agree or be 1.
HEED_API HideMatrix combine(const HideMatrix&, const HideMatrix&);
// The form that needs no matrix: how many tokens come before the trailing padding. Padding before a real
// token is refused.
HEED_API std::vector<std::int32_t> key_lengths(std::span<const std::int64_t> tokens, std::int64_t batch,
                                               std::int64_t pad_id = 0);

}  // namespace HEED_NAMESPACE
