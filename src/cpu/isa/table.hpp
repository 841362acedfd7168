// SPDX-License-Identifier: Apache-2.0
// Fills a target's table from its vector type: the whole of a target file is this and its test of the
// machine.
#pragma once
#include "cpu/backward/bias_and_sink.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/f32.hpp"
#include "cpu/isa/target.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/prefill/prefill.hpp"
#include "cpu/prefill/shared_mask.hpp"
#include "cpu/projection/bf16.hpp"
#include "cpu/projection/projection.hpp"
#include "cpu/projection/weight_gradient.hpp"
#include "cpu/tile/operands.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Where products are slow beside it, packing takes little, unless operands say more.
constexpr double few_packing_rows = 1;
template <class O>
constexpr double packing_rows() {
  if constexpr (requires { O::packing_rows; }) return O::packing_rows;
  return few_packing_rows;
}

template <Vector S>
constexpr Target make_target(const char* name, const char* needs, bool (*available)()) {
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = false,
      .panel_rows = Tile<S>::rows,
      .tile_columns = Tile<S>::columns,
      .depth_step = 2,
      .depth_together = 1,
      .max_short_rows = max_short_rows<S>,
      .packing_rows = few_packing_rows,
      .transpose_mask = nullptr,
      .prefill_floats = Prefill<PackedF32<S>>::scratch_floats,
      .block_floats = Prefill<PackedF32<S>>::block_floats,
      .prefill = [](const Call& c, const Rows& rows,
                    float* scratch) { Prefill<PackedF32<S>>(c, rows, scratch).run(); },
      .stream_floats = Prefill<PackedF32<S>>::total_floats,
      .stream = [](const Call& c, const Rows& rows, const ChunkRange& keys, float* scratch,
                   float* total) { Prefill<PackedF32<S>>(c, rows, scratch).stream(keys, total); },
      .stream_finish = [](const Call& c, const Rows& rows, float* scratch,
                          float* total) { Prefill<PackedF32<S>>(c, rows, scratch).finish_stream(total); },
      .decode_floats = Decode<DecodeF32<S>>::scratch_floats,
      .partial = Decode<DecodeF32<S>>::partial,
      .decode = [](const Call& c, const Rows& rows, std::int64_t chunk, float* scratch,
                   float* partial) { Decode<DecodeF32<S>>(c, rows, scratch).run(chunk, partial); },
      .decode_finish =
          [](const Call& c, const Rows& rows, std::int64_t chunks, float* scratch, float* partials) {
            Decode<DecodeF32<S>>(c, rows, scratch).finish(partials, chunks);
          },
      .project_floats = Project<S>::scratch_floats,
      .project = [](const Linear& t, const LinearPart& part,
                    float* scratch) { Project<S>(t, scratch).run(part); },
      .gradient_floats = Backward<PackedF32<S>>::floats,
      .gradient =
          [](const GradientCall& g, const GradientPart& part, float* scratch, float* of_head) {
            Backward<PackedF32<S>>(g, part, Cutter{scratch}, Cutter{of_head}).run();
          },
      .bias_gradient_floats = BiasGradient<PackedF32<S>>::scratch_floats,
      .bias_gradient = [](const GradientCall& g, const BiasPart& part,
                          float* scratch) { BiasGradient<PackedF32<S>>(g, part, Cutter{scratch}).run(); },
      .sink_gradient = [](const GradientCall& g, std::int64_t b,
                          std::int64_t h) { SinkGradient<S>(g, b, h).run(); },
      .weight_gradient_floats = WeightGradient<S>::scratch_floats,
      .weight_gradient = [](const WeightGradientCall& g, const WeightPart& part,
                            float* scratch) { WeightGradient<S>(g, part, Cutter{scratch}).run(); },
  };
}

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

// For few rows something that gives the same bits and leaves fewer lanes empty.
template <class Wide, class Narrow>
struct DecodeByRows {
  static bool is_narrow(const Call& c) {
    return round_up(c.group() * c.queries, Narrow::panel_rows) < Wide::panel_rows;
  }
  static std::int64_t scratch_floats(const Call& c) {
    return is_narrow(c) ? Narrow::scratch_floats(c) : Wide::scratch_floats(c);
  }
  static PartialLayout partial(const Call& c) { return is_narrow(c) ? Narrow::partial(c) : Wide::partial(c); }
  static void run(const Call& c, const Rows& rows, std::int64_t chunk, float* scratch, float* partial) {
    if (is_narrow(c)) return Narrow(c, rows, scratch).run(chunk, partial);
    Wide(c, rows, scratch).run(chunk, partial);
  }
  static void finish(const Call& c, const Rows& rows, std::int64_t chunks, float* scratch, float* partials) {
    if (is_narrow(c)) return Narrow(c, rows, scratch).finish(partials, chunks);
    Wide(c, rows, scratch).finish(partials, chunks);
  }
};

// Where scores are made of products strip by strip, masks that heads share are transposed for it.
template <Operands O>
constexpr decltype(Target::transpose_mask) transposes_masks() {
  if constexpr (ScoresInStrips<O>)
    return [](const Call& c, std::int64_t b, std::int64_t panel) {
      TransposeMask<typename O::S>(c, b, panel).run();
    };
  else
    return nullptr;
}

// A target whose matrix instructions take bf16 only. Few rows are decoded by Narrow.
template <GradientOperands Wide, class Narrow, ProjectsBf16 Projection>
  requires(Projection::outputs == Wide::rows)
constexpr Target make_bf16_target(const char* name, const char* needs, bool (*available)()) {
  using Decoding = DecodeByRows<DecodeByPrefill<Wide>, Narrow>;
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = true,
      .panel_rows = Wide::rows,
      .tile_columns = Projection::tile_rows,
      .depth_step = Projection::depth_step,
      .depth_together = Projection::together,
      .max_short_rows = max_decode_rows,
      .packing_rows = packing_rows<Wide>(),
      .transpose_mask = transposes_masks<Wide>(),
      .prefill_floats = Prefill<Wide>::scratch_floats,
      .block_floats = nullptr,
      .prefill = [](const Call& c, const Rows& rows,
                    float* scratch) { Prefill<Wide>(c, rows, scratch).run(); },
      .stream_floats = Prefill<Wide>::total_floats,
      .stream = [](const Call& c, const Rows& rows, const ChunkRange& keys, float* scratch,
                   float* total) { Prefill<Wide>(c, rows, scratch).stream(keys, total); },
      .stream_finish = [](const Call& c, const Rows& rows, float* scratch,
                          float* total) { Prefill<Wide>(c, rows, scratch).finish_stream(total); },
      .decode_floats = Decoding::scratch_floats,
      .partial = Decoding::partial,
      .decode = Decoding::run,
      .decode_finish = Decoding::finish,
      .project_floats = ProjectBf16<Projection>::scratch_floats,
      .project = [](const Linear& t, const LinearPart& part,
                    float* scratch) { ProjectBf16<Projection>(t, scratch).run(part); },
      .gradient_floats = Backward<Wide>::floats,
      .gradient = [](const GradientCall& g, const GradientPart& part, float* scratch,
                     float* of_head) { Backward<Wide>(g, part, Cutter{scratch}, Cutter{of_head}).run(); },
      .bias_gradient_floats = BiasGradient<Wide>::scratch_floats,
      .bias_gradient = [](const GradientCall& g, const BiasPart& part,
                          float* scratch) { BiasGradient<Wide>(g, part, Cutter{scratch}).run(); },
      .sink_gradient = [](const GradientCall& g, std::int64_t b,
                          std::int64_t h) { SinkGradient<typename Wide::S>(g, b, h).run(); },
      .weight_gradient_floats = nullptr,
      .weight_gradient = nullptr,
  };
}

}  // namespace heed::cpu::HEED_THIS_TARGET
