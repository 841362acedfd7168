// SPDX-License-Identifier: Apache-2.0
#include "c/rotary.hpp"

#include "c/call.hpp"
#include "c/status.hpp"
#include "c/structs.hpp"

namespace heed::c {
namespace {

constexpr std::array pairs_of{
    Choice<RotaryPairs>{HEED_ROTARY_PAIRS_HALVES, "HEED_ROTARY_PAIRS_HALVES", RotaryPairs::halves},
    Choice<RotaryPairs>{HEED_ROTARY_PAIRS_ADJACENT, "HEED_ROTARY_PAIRS_ADJACENT", RotaryPairs::adjacent},
};

float take_or(float& field, float standard) { return field == 0 ? standard : take(field); }

std::optional<float> take_given(float& field) {
  return field == 0 ? std::optional<float>() : std::optional<float>(take(field));
}

std::vector<float> take_list(const char* name, heed_floats& field) {
  const std::span<const float> list = to_span(name, take(field));
  return {list.begin(), list.end()};
}

LongRopeScaling take_longrope(heed_scaling& s) {
  LongRopeScaling made{.original_length = take(s.original_length),
                       .factor = take(s.factor),
                       .attention_factor = take_given(s.attention_factor)};
  made.short_factors = take_list(".short_factors", s.short_factors);
  made.long_factors = take_list(".long_factors", s.long_factors);
  return made;
}

using MakeScaling = std::optional<RotaryScaling> (*)(heed_scaling&);
using Result = std::optional<RotaryScaling>;
constexpr std::array scalings{
    Choice<MakeScaling>{HEED_SCALING_NONE, "HEED_SCALING_NONE", [](heed_scaling&) { return Result(); }},
    Choice<MakeScaling>{HEED_SCALING_LINEAR, "HEED_SCALING_LINEAR",
                        [](heed_scaling& s) { return Result(LinearScaling{take(s.factor)}); }},
    Choice<MakeScaling>{
        HEED_SCALING_DYNAMIC, "HEED_SCALING_DYNAMIC",
        [](heed_scaling& s) { return Result(DynamicScaling{take(s.factor), take(s.original_length)}); }},
    Choice<MakeScaling>{HEED_SCALING_YARN, "HEED_SCALING_YARN",
                        [](heed_scaling& s) {
                          return Result(
                              YarnScaling{.factor = take(s.factor),
                                          .original_length = take(s.original_length),
                                          .beta_fast = take_or(s.beta_fast, YarnScaling().beta_fast),
                                          .beta_slow = take_or(s.beta_slow, YarnScaling().beta_slow),
                                          .truncate = !to_flag(".untruncated", take(s.untruncated)),
                                          .attention_factor = take_given(s.attention_factor)});
                        }},
    Choice<MakeScaling>{
        HEED_SCALING_LLAMA3, "HEED_SCALING_LLAMA3",
        [](heed_scaling& s) {
          const Llama3Scaling standard;
          return Result(Llama3Scaling{
              .factor = take(s.factor),
              .original_length = take(s.original_length),
              .low_frequency_factor = take_or(s.low_frequency_factor, standard.low_frequency_factor),
              .high_frequency_factor = take_or(s.high_frequency_factor, standard.high_frequency_factor)});
        }},
    Choice<MakeScaling>{HEED_SCALING_LONGROPE, "HEED_SCALING_LONGROPE",
                        [](heed_scaling& s) { return Result(take_longrope(s)); }},
};

void check_nothing_left(const heed_scaling& scaling) {
  const auto& [kind, factor, original_length, beta_fast, beta_slow, attention_factor, untruncated, low, high,
               short_factors, long_factors] = scaling;
  if (factor != 0 || original_length || beta_fast != 0 || beta_slow != 0 || attention_factor != 0 ||
      untruncated || low != 0 || high != 0 || are_given(short_factors) || are_given(long_factors))
    throw something_left(kind);
}

Result to_scaling(heed_scaling scaling) {
  Result made = choose("", "kind", scaling.kind, scalings)(scaling);
  check_nothing_left(scaling);
  return made;
}

// The other way round.
struct FromScaling {
  heed_scaling& made;

  void operator()(const LinearScaling& s) const {
    made.kind = HEED_SCALING_LINEAR;
    made.factor = s.factor;
  }
  void operator()(const DynamicScaling& s) const {
    made.kind = HEED_SCALING_DYNAMIC;
    made.factor = s.factor;
    made.original_length = s.original_length;
  }
  void operator()(const YarnScaling& s) const {
    made.kind = HEED_SCALING_YARN;
    made.factor = s.factor;
    made.original_length = s.original_length;
    made.beta_fast = s.beta_fast;
    made.beta_slow = s.beta_slow;
    made.untruncated = s.truncate ? 0 : 1;
    made.attention_factor = s.attention_factor.value_or(0);
  }
  void operator()(const Llama3Scaling& s) const {
    made.kind = HEED_SCALING_LLAMA3;
    made.factor = s.factor;
    made.original_length = s.original_length;
    made.low_frequency_factor = s.low_frequency_factor;
    made.high_frequency_factor = s.high_frequency_factor;
  }
  void operator()(const LongRopeScaling& s) const {
    made.kind = HEED_SCALING_LONGROPE;
    made.factor = s.factor;
    made.original_length = s.original_length;
    made.short_factors = {s.short_factors.data(), s.short_factors.size()};
    made.long_factors = {s.long_factors.data(), s.long_factors.size()};
    made.attention_factor = s.attention_factor.value_or(0);
  }
};

}  // namespace

std::optional<Rotary> to_rotary(const char* name, const heed_rotary* given) {
  if (!given) return std::nullopt;
  const heed_rotary r = read_known(name, given);
  Rotary rotary;
  if (r.base != 0) rotary.base = r.base;
  if (r.dims != 0) rotary.dims = r.dims;
  rotary.pairs = choose(name, "pairs", r.pairs, pairs_of);
  rotary.scaling = qualified([&] { return to_scaling(r.scaling); }, name, ".scaling");
  return rotary;
}

heed_rotary from_rotary(const Rotary& rotary) {
  heed_rotary made{};
  made.size = sizeof made;
  made.base = rotary.base;
  made.pairs = number_of(rotary.pairs, pairs_of);
  made.dims = rotary.dims.value_or(0);
  if (rotary.scaling) std::visit(FromScaling{made.scaling}, *rotary.scaling);
  return made;
}

}  // namespace heed::c

using namespace heed::c;

heed_status heed_rotate(const heed_mutable_view* given_x, const heed_int64s* given_positions,
                        const heed_rotary* given_rotary, const heed_int64s* given_lengths) {
  return status_of([&] {
    check_pointer("x", given_x);
    check_pointer("positions", given_positions);
    const heed::MutableView x = to_view("x", *given_x);
    const auto positions = to_span("positions", *given_positions);
    const auto rotary = to_rotary("rotary", given_rotary);
    const auto lengths = to_span("lengths", given_lengths ? *given_lengths : heed_int64s{});
    heed::rotate(x, positions, rotary.value_or(heed::Rotary()), lengths);
  });
}
