// SPDX-License-Identifier: Apache-2.0
// Gradients as the CPU kernels read them: of attention, and of the matrix of a projection. Plain data only,
// like Call.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"

namespace heed::cpu {

// Sums over keys and over rows run in blocks of these lengths, counted from key 0 and from the first row of a
// sequence: each block is one chain, and blocks are added in order (O1). Rows of a KV head are numbered as
// Rows has it. Whole panels of every instruction set.
constexpr std::int64_t gradient_keys = 192;
constexpr std::int64_t gradient_rows = 96;

// A gradient that broadcasts: the extents of its own.
struct SharedGradient {
  Tensor tensor;  // a stride of 0 along every axis of extent 1
  std::int64_t batch = 0, heads = 0, length = 0, dim = 0;
  unsigned char* marks = nullptr;  // by element, row after row

  std::int64_t element(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t head = (batch == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h);
    return (head * length + (length == 1 ? 0 : i)) * dim + (dim == 1 ? 0 : j);
  }
};

struct GradientCall {
  Call forward;  // out and log_sum_exp are what was saved
  Tensor out_gradient, log_sum_exp_gradient;
  Tensor q, k, v;  // written through, as in Call; data is null where it was not asked for
  SharedGradient bias, sink;
  float scale = 1;
  bool accumulates = false;
  bool is_packed = false;

  // Marks of rows of q, k or v that need repair (S13): nothing was written to them. By
  // sequence, head and row; a sequence begins at first_row or first_key.
  unsigned char *repair_q = nullptr, *repair_k = nullptr, *repair_v = nullptr;
  const std::int64_t *first_row = nullptr, *first_key = nullptr;

  unsigned char& repair_mark(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return repair_q[first_row[b] + h * forward.sequences[b].queries + i];
  }
  std::int64_t key(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
    return first_key[b] + kv_head * forward.sequences[b].keys + j;
  }
};

// What a task computes: the gradients by its rows, by its keys, or by both, of one KV head. A task that has
// the gradients by some rows goes through all keys, and one that has those by some keys through all rows.
// Where the sums of a head are shared, a task has only some rows and some keys: the tasks of the same rows,
// or of the same keys, add to their sums one after another, and the last one writes them.
struct GradientPart {
  std::int64_t batch_entry, kv_head;
  std::int64_t first_row, rows;
  std::int64_t first_key, keys;
  bool of_rows, of_keys;
  bool is_shared = false;
};

// The memory of a part: the task's own, and that of the KV head, for all tasks that share its sums.
struct GradientFloats {
  std::int64_t task, head;
};

// Some elements of the bias's gradient, in its own extents: rows from first_row on (of a sequence, where it
// has a row for each), keys from first_key on.
struct BiasPart {
  std::int64_t batch_entry, head, first_row, first_key;
};

// Tokens of a chain; chains are added in order.
constexpr std::int64_t gradient_tokens = 256;  // fault: weight-gradient-in-other-blocks

// w += y^T * x and bias += y summed. Rows of x and y are (batch, length), each the concatenation of its
// heads.
struct WeightGradientCall {
  Tensor x, y;
  std::int64_t x_dim, y_dim;  // numbers of a row that lie together: a head's, or all
  std::int64_t length, tokens;
  std::int64_t inputs, outputs;
  float* w;                              // (outputs, inputs)
  float* bias;                           // null: not wanted
  std::int64_t max_inputs, max_outputs;  // of a part
};

// One task of it.
struct WeightPart {
  std::int64_t first_input, inputs, first_output, outputs;
  bool has_bias() const { return first_input == 0; }
};

}  // namespace heed::cpu
