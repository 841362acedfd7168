// SPDX-License-Identifier: Apache-2.0
// A Problem as the CPU kernels read it: plain data only. Kernel files are compiled for instruction sets this
// machine may lack, so they must not instantiate inline code of the standard library that the linker could
// hand to everybody else.
#pragma once
#include <cstdint>

#include "problem/call.hpp"

namespace heed::cpu {

using problem::BoolTensor, problem::Tensor, problem::TensorStrides, problem::Type;

// Where a row begins and how to walk it: sixteen elements a step apart, the next sixteen a block further, as
// cached values lie. Everywhere else a block is sixteen steps.
struct Row {
  const void* data;
  std::int64_t first, step;
  Type type;
  std::int64_t block = 16 * step;
};

// A bias or a boolean mask that all heads share, as panels of some rows read it: transposed for tasks that
// follow each other (cpu/prefill/shared_mask.hpp). Batch entries may share it, too. Of each key a panel has
// `key_words` words: one, whose bit r hides the key from row r; or the biases of its rows, side by side in
// f32, or in bf16 those of two keys in pairs.
struct SharedMask {
  std::uint32_t* words = nullptr;          // (panels, keys, key_words); null: there is none
  unsigned char* is_transposed = nullptr;  // (panels): whether its words say all there is to say
  std::int64_t first_panel = 0;            // of a batch entry's panels
  std::int64_t panels = 0, keys = 0, key_words = 0;
  bool is_of_batch = false;

  // Of the batch entries that share it the first.
  constexpr std::int64_t owner(std::int64_t batch_entry) const { return is_of_batch ? 0 : batch_entry; }
  std::int64_t size() const { return panels * keys * key_words; }
  std::uint32_t* panel(std::int64_t n) const { return words + (n - first_panel) * keys * key_words; }
  unsigned char& is_panel_transposed(std::int64_t n) const { return is_transposed[n - first_panel]; }
};

// Memory in which tasks leave the blocks of keys and values that they packed, for those that read the same
// (cpu/tile/operands.hpp).
struct SharedBlocks {
  float* memory = nullptr;  // (heads, of_head, floats); null: every task packs for itself
  std::int64_t heads = 0, of_head = 0,
               floats = 0;  // KV heads of all batch entries; blocks, and what each takes

  float* block(std::int64_t head, std::int64_t n) const { return memory + (head * of_head + n) * floats; }
};
// In front of each block: whether it is packed, and what of it is known. Zeros say that nobody has begun.
constexpr std::int64_t shared_header_floats = 16;

struct Call : problem::KernelCall {
  SharedMask shared{};
  SharedBlocks blocks{};
  // Set when a row came out as NaN or an infinity: repair says what it is (S13).
  unsigned char* needs_repair = nullptr;
};

// y = x * W^T + b.
struct LinearMap {
  Tensor y{};
  std::int64_t y_dim = 0;
  const void* panels = nullptr;  // W as its kernel wants it (cpu/projection/driver.hpp), of this type
  Type panel_type = Type::f32;
  bool is_packed =
      false;  // else `rows` are W where it lies, (1, 1, out, in): kernels for vectors pack it as they go
  Tensor rows{};
  std::int64_t out = 0;
  const float* bias = nullptr;  // null: none
};

// Maps that read one x. Its rows and theirs are (batch, length), each the concatenation of its heads.
struct Linear {
  static constexpr std::int64_t max_maps = 3;  // Q, K and V

  Tensor x;
  std::int64_t x_heads, x_dim, length;
  std::int64_t depth;             // the width of x, filled up
  std::int64_t rows_of_part = 0;  // no task has more
  std::int64_t map_count = 0;
  LinearMap maps[max_maps]{};
};

// One task of them: rows [first_row, first_row + rows), panels [first_panel, end_panel), counted through all
// maps.
struct LinearPart {
  std::int64_t first_row, rows, first_panel, end_panel;
};
constexpr std::int64_t max_rows_of_part = 384;

using softmax::block_keys, softmax::chunk_keys, softmax::chain_keys, softmax::chain_terms;

// The most rows sharing a KV head that decode takes: for more, it pays to pack the keys.
constexpr std::int64_t max_decode_rows = 32;

// Whole chunks of a stream's keys, but for the last: [begin, end). The first of them begin the state that is
// kept.
struct ChunkRange {
  std::int64_t begin, end;
  bool is_first;
};

// The softmax of a chunk, as one task of decode leaves it: the maxima of its rows, their sums, and their
// weighted values, which lie (dims, panel) for each panel of so many rows. Some rows and dims are there only
// to fill a vector.
struct PartialLayout {
  std::int64_t rows, dims, panel;
  std::int64_t floats() const { return rows * (2 + dims); }
};

// Rows of one task: every query head that reads kv_head, over a range of queries of one sequence. Row r is
// query first_query + r / group of member r % group, so that neighbouring rows see nearly the same keys.
struct Rows {
  std::int64_t batch_entry, kv_head;
  std::int64_t first_query, queries;
};

}  // namespace heed::cpu
