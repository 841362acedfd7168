// SPDX-License-Identifier: Apache-2.0
// Fills a target's table from its vector type: the whole of a target file is this and its test of the
// machine.
#pragma once
#include "cpu/algorithm/decode.hpp"
#include "cpu/algorithm/prefill.hpp"
#include "cpu/algorithm/projection.hpp"
#include "cpu/simd/vector.hpp"
#include "cpu/target/target.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
constexpr Target make_target(const char* name, const char* needs, bool (*available)()) {
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = false,
      .panel_rows = Tile<S>::rows,
      .tile_columns = Tile<S>::columns,
      .most_short_rows = most_short_rows<S>,
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

// Decode as prefill cut along the keys, so that both round alike (O3): for few rows on operands of narrower
// panels, which give the same bits and leave fewer lanes empty.
template <class Operands, class Narrow>
struct DecodeByPrefill {
  static std::int64_t rows(const Call& c) { return c.group() * c.queries; }
  static bool is_narrow(const Call& c) { return round_up(rows(c), Narrow::rows) < Operands::rows; }

  static std::int64_t scratch_floats(const Call& c) {
    return is_narrow(c) ? Prefill<Narrow>::scratch_floats(c, rows(c))
                        : Prefill<Operands>::scratch_floats(c, rows(c));
  }
  static std::int64_t partial_floats(const Call& c) {
    return is_narrow(c) ? Prefill<Narrow>::partial_floats(c) : Prefill<Operands>::partial_floats(c);
  }
  static void run(const Call& c, const Rows& rows, std::int64_t chunk, float* scratch, float* partial) {
    if (is_narrow(c)) return Prefill<Narrow>(c, rows, scratch).run_chunk(chunk, partial);
    Prefill<Operands>(c, rows, scratch).run_chunk(chunk, partial);
  }
  static void finish(const Call& c, const Rows& rows, std::int64_t chunks, float* scratch, float* partials) {
    if (is_narrow(c)) return Prefill<Narrow>(c, rows, scratch).finish_chunks(partials, chunks);
    Prefill<Operands>(c, rows, scratch).finish_chunks(partials, chunks);
  }
};

// A target whose matrix instructions take bf16 only.
template <class Operands, class Narrow = Operands>
constexpr Target make_bf16_target(const char* name, const char* needs, bool (*available)()) {
  using Decoding = DecodeByPrefill<Operands, Narrow>;
  return {
      .name = name,
      .requires_ = needs,
      .available = available,
      .only_bf16 = true,
      .panel_rows = Operands::rows,
      .tile_columns = 0,
      .most_short_rows = most_decode_rows,
      .prefill_floats = Prefill<Operands>::scratch_floats,
      .prefill = [](const Call& c, const Rows& rows,
                    float* scratch) { Prefill<Operands>(c, rows, scratch).run(); },
      .decode_floats = Decoding::scratch_floats,
      .partial_floats = Decoding::partial_floats,
      .decode = Decoding::run,
      .decode_finish = Decoding::finish,
      .project_floats = nullptr,
      .project = nullptr,
  };
}

}  // namespace heed::cpu::HEED_THIS_TARGET
