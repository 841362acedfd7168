// SPDX-License-Identifier: Apache-2.0
#include "c/call.hpp"

#include "c/choice.hpp"
#include "c/handles.hpp"
#include "c/masks.hpp"
#include "c/sized.hpp"
#include "c/views.hpp"

namespace heed::c {
namespace {

constexpr std::array head_maps{
    Choice<HeadMap>{HEED_HEAD_MAP_INTERLEAVED, "HEED_HEAD_MAP_INTERLEAVED", HeadMap::interleaved},
    Choice<HeadMap>{HEED_HEAD_MAP_TILED, "HEED_HEAD_MAP_TILED", HeadMap::tiled},
};
constexpr std::array stages{
    Choice<Stage>{HEED_STAGE_RAW, "HEED_STAGE_RAW", Stage::raw},
    Choice<Stage>{HEED_STAGE_SOFTCAPPED, "HEED_STAGE_SOFTCAPPED", Stage::softcapped},
    Choice<Stage>{HEED_STAGE_BIASED, "HEED_STAGE_BIASED", Stage::biased},
};

// A cache stands for k and v; who gives them all the same is told so by attention().
View keys_or_values(const char* name, const heed_view& view, const heed_cache* cache) {
  return cache && !is_given(view) ? View() : to_view(name, view);
}

std::optional<float> to_scale(const heed_options& options) {
  if (to_flag("options.has_scale", options.has_scale)) return options.scale;
  if (options.scale != 0)
    throw refusal(Error::ambiguous, "options.scale: ", options.scale, " is given, but has_scale is 0");
  return std::nullopt;
}

// To C++ no name is no wish.
const char* to_kernel(const char* name) {
  if (*name == '\0') throw refusal(Error::unsupported, "options.kernel: \"\" is not a kernel of this build");
  return name;
}

}  // namespace

Inputs to_inputs(const heed_inputs* given) {
  const heed_inputs in = read_known("inputs", given);
  Inputs inputs;
  inputs.q = to_view("q", in.q);
  inputs.k = keys_or_values("k", in.k, in.cache);
  inputs.v = keys_or_values("v", in.v, in.cache);
  if (in.cache) inputs.cache = &in.cache->cache;
  inputs.sequences = to_span("inputs.sequences", in.sequences);
  inputs.query_starts = to_span("query_starts", in.query_starts);
  inputs.key_starts = to_span("key_starts", in.key_starts);
  inputs.query_counts = to_span("query_counts", in.query_counts);
  return inputs;
}

Outputs to_outputs(const heed_outputs& o) {
  Outputs outputs{.out = to_view("out", o.out)};
  outputs.weights = to_optional("weights", o.weights);
  outputs.log_sum_exp = to_optional("log_sum_exp", o.log_sum_exp);
  outputs.scores.into = to_optional("scores.into", o.scores.into);
  outputs.scores.stage = choose("scores", "stage", o.scores.stage, stages);
  check_reserved("scores", o.scores.reserved);
  return outputs;
}

Options to_options(const heed_options* given) {
  const heed_options o = read_known_or_defaults("options", given);
  Options options;
  add_masks(o.masks, options);
  options.bias = to_optional("options.bias", o.bias);
  const std::optional<Align> align = to_align("options", "alibi_align", o.alibi_align);
  if (o.alibi_slopes.count > 0)
    options.alibi = Alibi{to_span("options.alibi_slopes", o.alibi_slopes), align};
  else if (align)
    throw refusal(Error::value, "options.alibi_align: given, but alibi_slopes are not");
  options.scale = to_scale(o);
  if (o.softcap != 0) options.softcap = o.softcap;
  options.sink = to_optional("options.sink", o.sink);
  check_reserved("options.dropout", o.dropout.reserved);
  if (o.dropout.drop_probability != 0)
    options.dropout = Dropout{.drop_probability = o.dropout.drop_probability, .seed = o.dropout.seed};
  options.head_map = to_head_map("options", o.head_map);
  if (o.kernel) options.kernel = to_kernel(o.kernel);
  options.threads = o.threads;
  options.stream = o.stream;
  return options;
}

HeadMap to_head_map(const char* name, heed_head_map number) {
  return choose(name, "head_map", number, head_maps);
}

heed_head_map from_head_map(HeadMap map) { return number_of(map, head_maps); }

}  // namespace heed::c
