// SPDX-License-Identifier: Apache-2.0
// How attention in f64 is cut into tasks. Plain data only, like Call.
#pragma once
#include <cstdint>

#include "cpu/backward/call.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

// Scores are computed for blocks of so many keys, counted from key 0, and panels of up to so many queries.
constexpr std::int64_t f64_block_keys = 64;
constexpr std::int64_t f64_panel_rows = 32;

struct F64Row {
  std::int64_t head, query;
};

// Some queries of one head, one after another; or any that read one KV head, in the order of their numbers.
struct F64Panel {
  std::int64_t batch_entry, head;
  std::int64_t first_query, queries;
  const F64Row* rows = nullptr;  // the second

  F64Row row(std::int64_t r) const { return rows ? rows[r] : F64Row{head, first_query + r}; }
};

// Gradients: a cell has some panels of a KV head, numbered query head after query head, and some of its keys.
// Cells of the same panels add to the sums of their rows one after another, cells of the same keys to theirs.
constexpr std::int64_t f64_cell_panels = 4, f64_cell_keys = 512;

struct F64Cell {
  std::int64_t batch_entry, kv_head;
  std::int64_t first_panel, panels;
  std::int64_t first_key, keys;
};

// Where the sums of a call lie. Rows are numbered as the marks of GradientCall are: by sequence, head and
// row.
struct F64Sums {
  double* q = nullptr;  // (rows, dim); null: not asked for
  double* k = nullptr;  // (keys, dim in whole vectors)
  double* v = nullptr;  // (keys, value_dim in whole vectors)
  std::int64_t k_width = 0, v_width = 0;
};

// Elements of a bias's gradient, in its own extents: of one entry and head, the rows of one panel, or the one
// row that all share.
struct F64BiasPart {
  std::int64_t batch_entry, head, first_row;
};

// b(n, m) of a product, at data[n * column + m * term].
struct F64Factor {
  const double* data;
  std::int64_t column, term;
};

// Of a product c(n, w) = sum over m of a(m, w) * b(n, m): a and c have rows of `width` doubles, but those of
// c may lie further apart.
struct F64Product {
  const double* a;
  std::int64_t width;
  F64Factor b;
  std::int64_t columns, terms;
  double* c;
  std::int64_t c_width = width;
};

// What a target offers for f64; null where it takes bf16 alone.
struct F64Kernels {
  std::int64_t lanes = 0;
  std::int64_t (*attend_doubles)(const Call&) = nullptr;  // scratch of one task
  void (*attend)(const Call&, const F64Panel&, double* scratch) = nullptr;
  std::int64_t (*gradient_doubles)(const GradientCall&) =
      nullptr;  // scratch of one task, for all that follow
  void (*gradient)(const GradientCall&, const F64Cell&, const F64Sums&, double* scratch) = nullptr;
  void (*bias_gradient)(const GradientCall&, const F64BiasPart&, double* scratch, double* sums) = nullptr;
  void (*sink_gradient)(const GradientCall&, std::int64_t batch_entry, std::int64_t head,
                        double* scratch) = nullptr;
};

// The same, of what another kernel could not finish (S13): only results that are not finite, and gradients
// that are marked, are written.
struct F64Repairs {
  bool (*needs_repair)(const Call&, std::int64_t batch_entry, const F64Row&) = nullptr;
  std::int64_t (*row_doubles)(const Call&, std::int64_t rows,
                              std::int64_t keys) = nullptr;  // scratch of one task
  void (*rows)(const Call&, const F64Panel&, double* scratch) = nullptr;
  F64Kernels gradients{};
};

}  // namespace heed::cpu
