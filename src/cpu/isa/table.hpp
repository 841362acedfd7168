// SPDX-License-Identifier: Apache-2.0
// Makes a target's table from its vector type, or from the operands of its matrix instructions. A target's
// .cpp is this and its test of the machine.
#pragma once
#include "cpu/backward/bias_and_sink.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/f32.hpp"
#include "cpu/f64/backward.hpp"
#include "cpu/isa/target.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/prefill/prefill.hpp"
#include "cpu/prefill/shared_mask.hpp"
#include "cpu/projection/projection.hpp"
#include "cpu/projection/weight_gradient.hpp"
#include "cpu/tile/operands.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Decode as prefill cut along the keys, so that both round alike (O3).
template <Operands O>
struct DecodeByPrefill {
  static constexpr std::int64_t panel_rows = O::rows;

  static std::int64_t scratch_floats(const Call& c) {
    return Prefill<O>::scratch_floats(c, c.group() * c.queries);
  }
  static PartialLayout partial(const Call& c) { return Prefill<O>::partial(c); }

  DecodeByPrefill(const Call& c, const Rows& rows, float* scratch) : prefill(c, rows, scratch) {}
  void run(std::int64_t chunk, float* partial) { prefill.run_chunk(chunk, partial); }
  void finish(float* partials, std::int64_t chunks) { prefill.finish_chunks(partials, chunks); }

  Prefill<O> prefill;
};

// Decode by Narrow where rows are few: the same bits, and fewer empty lanes.
template <class Wide, class Narrow>
struct DecodeByRows {
  static bool is_narrow(const Call& c) {
    return round_up(c.group() * c.queries, Narrow::panel_rows) < Wide::panel_rows;
  }
  static std::int64_t scratch_floats(const Call& c) {
    return is_narrow(c) ? Narrow::scratch_floats(c) : Wide::scratch_floats(c);
  }
  static PartialLayout partial(const Call& c) { return is_narrow(c) ? Narrow::partial(c) : Wide::partial(c); }

  void run(std::int64_t chunk, float* partial) {
    if (is_narrow(c)) return Narrow(c, rows, scratch).run(chunk, partial);
    Wide(c, rows, scratch).run(chunk, partial);
  }
  void finish(float* partials, std::int64_t chunks) {
    if (is_narrow(c)) return Narrow(c, rows, scratch).finish(partials, chunks);
    Wide(c, rows, scratch).finish(partials, chunks);
  }

  const Call& c;
  const Rows& rows;
  float* scratch;
};

// What some operands have and others have not: null, or the ordinary.
template <Operands O>
constexpr double packing_rows() {
  if constexpr (requires { O::packing_rows; }) return O::packing_rows;
  return 1;  // packing takes little where products are slow beside it
}
template <Operands O>
constexpr decltype(Target::block_floats) block_floats() {
  if constexpr (SharesBlocks<O>) return Prefill<O>::block_floats;
  return nullptr;
}
// Where scores are made of products strip by strip, masks that heads share are transposed for it.
template <Operands O>
constexpr decltype(Target::transpose_mask) transpose_mask() {
  if constexpr (ScoresInStrips<O>)
    return [](const Call& c, std::int64_t b, std::int64_t panel) {
      TransposeMask<typename O::S>(c, b, panel).run();
    };
  return nullptr;
}

// The kernels over these operands; few rows are decoded by Few.
template <GradientOperands O, class Few, class Projecting>
constexpr Target make_kernels() {
  using S = typename O::S;
  return {
      .panel_rows = O::rows,
      .max_short_rows = max_short_rows<S>,
      .packing_rows = packing_rows<O>(),
      .transpose_mask = transpose_mask<O>(),
      .prefill_floats = Prefill<O>::scratch_floats,
      .block_floats = block_floats<O>(),
      .prefill = [](const Call& c, const Rows& rows, float* scratch) { Prefill<O>(c, rows, scratch).run(); },
      .stream_floats = Prefill<O>::total_floats,
      .stream = [](const Call& c, const Rows& rows, const ChunkRange& keys, float* scratch,
                   float* total) { Prefill<O>(c, rows, scratch).stream(keys, total); },
      .stream_finish = [](const Call& c, const Rows& rows, float* scratch,
                          float* total) { Prefill<O>(c, rows, scratch).finish_stream(total); },
      .decode_floats = Few::scratch_floats,
      .partial = Few::partial,
      .decode = [](const Call& c, const Rows& rows, std::int64_t chunk, float* scratch,
                   float* partial) { Few{c, rows, scratch}.run(chunk, partial); },
      .decode_finish = [](const Call& c, const Rows& rows, std::int64_t chunks, float* scratch,
                          float* partials) { Few{c, rows, scratch}.finish(partials, chunks); },
      .project_floats = Projecting::scratch_floats,
      .project = [](const Linear& t, const LinearPart& part,
                    float* scratch) { Projecting(t, scratch).run(part); },
      .gradient_floats = Backward<O>::floats,
      .gradient = [](const GradientCall& g, const GradientPart& part, float* scratch,
                     float* of_head) { Backward<O>(g, part, Cutter{scratch}, Cutter{of_head}).run(); },
      .bias_gradient_floats = BiasGradient<O>::scratch_floats,
      .bias_gradient = [](const GradientCall& g, const BiasPart& part,
                          float* scratch) { BiasGradient<O>(g, part, Cutter{scratch}).run(); },
      .sink_gradient = [](const GradientCall& g, std::int64_t b,
                          std::int64_t h) { SinkGradient<S>(g, b, h).run(); },
  };
}

// A target for every dtype, which computes in f32, and in f64 where that is given.
template <Vector S>
constexpr Target make_target(const char* name, const char* needs, bool (*available)()) {
  Target target = make_kernels<PackedF32<S>, Decode<DecodeF32<S>>, Project<S>>();
  target.name = name, target.requires_ = needs, target.available = available;
  target.tile_columns = Tile<S>::columns, target.depth_step = 2, target.depth_together = 1;
  target.weight_gradient_floats = WeightGradient<S>::scratch_floats;
  target.weight_gradient = [](const WeightGradientCall& g, const WeightPart& part, float* scratch) {
    WeightGradient<S>(g, part, Cutter{scratch}).run();
  };
  target.f64 = f64_kernels<S>(), target.repairs = f64_repairs<S>();
  return target;
}

// A target whose matrix instructions take bf16 only. Few rows are decoded by Narrow.
template <GradientOperands Wide, class Narrow, ProjectsBf16 Projection>
  requires(Projection::outputs == Wide::rows)
constexpr Target make_bf16_target(const char* name, const char* needs, bool (*available)()) {
  Target target = make_kernels<Wide, DecodeByRows<DecodeByPrefill<Wide>, Narrow>, ProjectBf16<Projection>>();
  target.name = name, target.requires_ = needs, target.available = available;
  target.only_bf16 = true;
  target.tile_columns = Projection::tile_rows;
  target.depth_step = Projection::depth_step, target.depth_together = Projection::together;
  return target;
}

}  // namespace heed::cpu::HEED_THIS_TARGET
