// SPDX-License-Identifier: Apache-2.0
// Fills a target's table from its vector type: the whole of a target file is this and its test of the
// machine.
#pragma once
#include "cpu/algorithm/decode.hpp"
#include "cpu/algorithm/prefill.hpp"
#include "cpu/algorithm/projection.hpp"
#include "cpu/target/target.hpp"

namespace heed::cpu {

template <class S>
constexpr Target make_target(const char* name, const char* needs, bool (*available)()) {
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = false,
      .panel_rows = Tile<S>::rows,
      .tile_columns = Tile<S>::columns,
      .prefill_floats = Prefill<PackedF32<S>>::scratch_floats,
      .prefill = [](const Call& c, const Rows& rows,
                    float* scratch) { Prefill<PackedF32<S>>(c, rows, scratch).run(); },
      .decode_floats = Decode<S>::scratch_floats,
      .partial_floats = [](const Call& c) { return PartialLayout<S>(c).floats(); },
      .decode = [](const Call& c, const Rows& rows, std::int64_t chunk, float* scratch,
                   float* partial) { Decode<S>(c, rows, scratch).run(chunk, partial); },
      .decode_finish = [](const Call& c, const Rows& rows, std::int64_t chunks, float* scratch,
                          float* partials) { Decode<S>(c, rows, scratch).finish(partials, chunks); },
      .project_floats = Project<S>::scratch_floats,
      .project = [](const Linear& t, const LinearPart& part,
                    float* scratch) { Project<S>(t, scratch).run(part); },
  };
}

// A target whose matrix instructions take bf16 only: decode is prefill cut along the keys, so both round
// alike (O3).
template <class Operands>
constexpr Target make_bf16_target(const char* name, const char* needs, bool (*available)()) {
  using Kernel = Prefill<Operands>;
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = true,
      .panel_rows = Operands::rows,
      .tile_columns = 0,
      .prefill_floats = Kernel::scratch_floats,
      .prefill = [](const Call& c, const Rows& rows, float* scratch) { Kernel(c, rows, scratch).run(); },
      .decode_floats = [](const Call& c) { return Kernel::scratch_floats(c, c.group() * c.queries); },
      .partial_floats = Kernel::partial_floats,
      .decode = [](const Call& c, const Rows& rows, std::int64_t chunk, float* scratch,
                   float* partial) { Kernel(c, rows, scratch).run_chunk(chunk, partial); },
      .decode_finish = [](const Call& c, const Rows& rows, std::int64_t chunks, float* scratch,
                          float* partials) { Kernel(c, rows, scratch).finish_chunks(partials, chunks); },
      .project_floats = nullptr,
      .project = nullptr,
  };
}

}  // namespace heed::cpu
