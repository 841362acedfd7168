// SPDX-License-Identifier: Apache-2.0
// What one instruction set offers: a name, a test of this machine, and a table of functions. One .cpp per
// target, compiled with its own flags; targets.cpp holds the only list.
#pragma once
#include <cstdint>
#include <span>

#include "cpu/backward/call.hpp"
#include "cpu/call.hpp"
#include "cpu/f64/call.hpp"

namespace heed::cpu {

struct Target {
  const char* name = nullptr;       // "neon"
  const char* requires_ = nullptr;  // what the machine must have, in words for explain() and doctor
  bool (*available)() = nullptr;
  // Takes q, k and v, or x and weights, in bf16 only, and has neither gradients of weights nor f64.
  bool only_bf16 = false;
  int panel_rows, tile_columns = 0;
  int depth_step = 0;           // packed weights have a multiple of it as inputs,
  int depth_together = 0;       // of which this many lie side by side
  std::int64_t max_short_rows;  // that decode takes where they see all of a few keys
  double packing_rows;          // packing keys and values takes as long as this many rows of prefill

  // Transposes a panel of a mask that heads share; null: masks are read in place.
  void (*transpose_mask)(const Call&, std::int64_t batch_entry, std::int64_t panel);
  std::int64_t (*prefill_floats)(const Call&, std::int64_t rows);  // scratch of one task
  std::int64_t (*block_floats)(const Call&);  // of a block that tasks share; null: each packs for itself
  void (*prefill)(const Call&, const Rows&, float* scratch);

  // Prefill over some chunks of keys at a time. `total` is the state of the rows after all chunks so far, of
  // stream_floats; at the end it is written. Scratch as in prefill.
  std::int64_t (*stream_floats)(const Call&, std::int64_t rows);
  void (*stream)(const Call&, const Rows&, const ChunkRange&, float* scratch, float* total);
  void (*stream_finish)(const Call&, const Rows&, float* scratch, float* total);

  std::int64_t (*decode_floats)(const Call&);  // scratch of one task
  PartialLayout (*partial)(const Call&);       // what a chunk leaves; decode_finish merges into the first
  void (*decode)(const Call&, const Rows&, std::int64_t chunk, float* scratch, float* partial);
  void (*decode_finish)(const Call&, const Rows&, std::int64_t chunks, float* scratch, float* partials);

  std::int64_t (*project_floats)(const Linear&);  // scratch of one task
  void (*project)(const Linear&, const LinearPart&, float* scratch);

  GradientFloats (*gradient_floats)(const GradientCall&, const GradientPart&);
  void (*gradient)(const GradientCall&, const GradientPart&, float* scratch, float* of_head);
  std::int64_t (*bias_gradient_floats)(const GradientCall&);  // scratch of one task
  void (*bias_gradient)(const GradientCall&, const BiasPart&, float* scratch);
  void (*sink_gradient)(const GradientCall&, std::int64_t batch_entry, std::int64_t head);

  // Null where only_bf16.
  std::int64_t (*weight_gradient_floats)(const WeightGradientCall&) = nullptr;  // scratch of one task
  void (*weight_gradient)(const WeightGradientCall&, const WeightPart&, float* scratch) = nullptr;
  F64Kernels f64{};
  F64Repairs repairs{};
};

// Every target compiled in, the best first; scalar is last and always available.
std::span<const Target* const> targets();

}  // namespace heed::cpu
