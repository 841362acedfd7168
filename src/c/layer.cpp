// SPDX-License-Identifier: Apache-2.0
// What a layer is made from, between C and C++.
#include "heed/layer.hpp"

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "c/call.hpp"
#include "c/rotary.hpp"
#include "c/status.hpp"
#include "c/structs.hpp"
#include "heed/c.h"
#include "heed/pretrained.hpp"
#include "refusal/refusal.hpp"

namespace heed::c {

LayerConfig to_config(const heed_layer_config*);
heed_layer_config from_config(const LayerConfig&);  // of a completed one, without its rotary
LayerWeights to_weights(const heed_layer_weights*);

namespace {

std::optional<std::int64_t> unless_zero(std::int64_t extent) {
  return extent == 0 ? std::optional<std::int64_t>() : std::optional<std::int64_t>(extent);
}

Element element_of(DType dtype) {
  return dtype == DType::f32   ? Element::f32
         : dtype == DType::f16 ? Element::f16
         : dtype == DType::f64 ? Element::f64
                               : Element::bf16;
}

// A layer owns its weights, packed row after row.
std::vector<std::byte> packed(const View& matrix) {
  const std::size_t bytes = bytes_of(matrix.dtype);
  std::vector<std::byte> data(static_cast<std::size_t>(matrix.shape.elements()) * bytes);
  std::byte* next = data.data();
  for (std::int64_t row = 0; row < matrix.shape.length; ++row)
    for (std::int64_t column = 0; column < matrix.shape.dim; ++column, next += bytes) {
      const std::int64_t at = row * matrix.stride.length + column * matrix.stride.dim;
      std::memcpy(next, static_cast<const std::byte*>(matrix.data) + at * static_cast<std::int64_t>(bytes),
                  bytes);
    }
  return data;
}

Array to_matrix(const char* name, const heed_view& given) {
  const View view = to_view(name, given);
  check_argument({name, view});
  if (view.device != Device::cpu)
    throw refusal(Error::device, name, ".device: ", view.device,
                  ", but weights are copied from the CPU's memory");
  if (view.shape.batch != 1 || view.shape.heads != 1)
    throw refusal(Error::shape, name, ".shape: ", view.shape, " is not (1, 1, rows, columns)");
  return {element_of(view.dtype), {view.shape.length, view.shape.dim}, packed(view)};
}

std::optional<Array> to_bias(const char* name, const heed_view& given) {
  if (!is_given(given)) return std::nullopt;
  Array row = to_matrix(name, given);
  if (row.shape[0] != 1)
    throw refusal(Error::shape, name, ".length: ", row.shape[0], " is not 1; a bias is (1, 1, 1, entries)");
  row.shape = {row.shape[1]};
  return row;
}

}  // namespace

LayerConfig to_config(const heed_layer_config* given) {
  const heed_layer_config c = read_known("config", given);
  LayerConfig config{.model_dim = c.model_dim, .heads = c.heads};
  config.kv_heads = unless_zero(c.kv_heads);
  config.head_dim = unless_zero(c.head_dim);
  config.value_head_dim = unless_zero(c.value_head_dim);
  config.key_dim = unless_zero(c.key_dim);
  config.value_dim = unless_zero(c.value_dim);
  config.drop_probability = c.drop_probability;
  config.head_map = to_head_map("config", c.head_map);
  config.rotary = to_rotary("config.rotary", c.rotary);
  return config;
}

heed_layer_config from_config(const LayerConfig& c) {
  return {.size = sizeof(heed_layer_config),
          .model_dim = c.model_dim,
          .heads = c.heads,
          .kv_heads = *c.kv_heads,
          .head_dim = *c.head_dim,
          .value_head_dim = *c.value_head_dim,
          .key_dim = *c.key_dim,
          .value_dim = *c.value_dim,
          .drop_probability = c.drop_probability,
          .head_map = from_head_map(c.head_map),
          .rotary = nullptr};
}

LayerWeights to_weights(const heed_layer_weights* given) {
  const heed_layer_weights w = read_known("weights", given);
  LayerWeights weights;
  weights.w_q = to_matrix("w_q", w.w_q);
  weights.w_k = to_matrix("w_k", w.w_k);
  weights.w_v = to_matrix("w_v", w.w_v);
  weights.w_o = to_matrix("w_o", w.w_o);
  weights.b_q = to_bias("b_q", w.b_q);
  weights.b_k = to_bias("b_k", w.b_k);
  weights.b_v = to_bias("b_v", w.b_v);
  weights.b_o = to_bias("b_o", w.b_o);
  return weights;
}

// The layer as c.h has it.

namespace {

using Mode = AttentionLayer::Mode;
constexpr std::array modes{
    Choice<Mode>{HEED_MODE_EVAL, "HEED_MODE_EVAL", Mode::eval},
    Choice<Mode>{HEED_MODE_TRAIN, "HEED_MODE_TRAIN", Mode::train},
};

heed_layer* new_layer(const LayerConfig& config, const LayerWeights& weights,
                      std::int64_t sliding_window = 0) {
  auto* made = new heed_layer{AttentionLayer(config, weights), sliding_window, {}};
  if (const auto& rotary = made->layer.config().rotary) made->rotary = from_rotary(*rotary);
  return made;
}

AttentionLayer::Call to_call(const heed_call* given) {
  const heed_call c = read_known("call", given);
  AttentionLayer::Call call;
  call.x = to_view("x", c.x);
  call.context = to_optional("context", c.context);
  call.value = to_optional("value", c.value);
  if (c.cache) call.cache = &c.cache->cache;
  call.sequences = to_span("sequences", c.sequences);
  call.counts = to_span("counts", c.counts);
  call.positions = to_span("positions", c.positions);
  call.key_positions = to_span("key_positions", c.key_positions);
  call.dropout_seed = c.dropout_seed;
  if (c.activations) call.activations = &c.activations->activations;
  return call;
}

LayerGradients to_gradients(const heed_layer_gradients* given) {
  const heed_layer_gradients g = read_known("gradients", given);
  return {.out = to_view("gradients.out", g.out),
          .log_sum_exp = to_optional("gradients.log_sum_exp", g.log_sum_exp),
          .x = to_optional("gradients.x", g.x),
          .context = to_optional("gradients.context", g.context),
          .value = to_optional("gradients.value", g.value),
          .bias = to_optional("gradients.bias", g.bias),
          .sink = to_optional("gradients.sink", g.sink),
          .accumulate = to_flag("gradients.accumulate", g.accumulate),
          .skip_parameters = to_flag("gradients.skip_parameters", g.skip_parameters)};
}

// They lie row after row, so a packed layout says how.
heed_parameters from_parameters(const std::vector<Parameter>& parameters) {
  constexpr std::pair<std::string_view, heed_mutable_view heed_parameters::*> fields[] = {
      {"w_q", &heed_parameters::w_q}, {"w_k", &heed_parameters::w_k}, {"w_v", &heed_parameters::w_v},
      {"w_o", &heed_parameters::w_o}, {"b_q", &heed_parameters::b_q}, {"b_k", &heed_parameters::b_k},
      {"b_v", &heed_parameters::b_v}, {"b_o", &heed_parameters::b_o}};
  heed_parameters all{};
  for (const auto& [name, values] : parameters)
    for (const auto& [field, place] : fields)
      if (field == name)
        all.*place = {.data = values.data,
                      .shape = {1, 1, values.shape.length, values.shape.dim},
                      .stride = {},
                      .dtype = from_dtype(values.dtype),
                      .device = HEED_DEVICE_CPU,
                      .layout = HEED_LAYOUT_BHSD,
                      .reserved = 0};
  return all;
}

}  // namespace
}  // namespace heed::c

using namespace heed::c;

heed_status heed_layer_create(const heed_layer_config* given_config, const heed_layer_weights* given_weights,
                              heed_layer** layer) {
  return status_of([&] {
    check_pointer("layer", layer);
    const heed::LayerConfig config = to_config(given_config);
    const heed::LayerWeights weights = to_weights(given_weights);
    *layer = new_layer(config, weights);
  });
}

heed_status heed_layer_load(const char* path, const char* prefix, const heed_layer_config* given_config,
                            heed_layer** layer) {
  return status_of([&] {
    check_pointer("path", path);
    check_pointer("layer", layer);
    const heed::LayerConfig config = to_config(given_config);
    const heed::Arrays arrays = heed::read_safetensors(path);
    const auto weights =
        qualified([&] { return heed::layer_weights(arrays, prefix ? prefix : ""); }, path, ": ");
    *layer = new_layer(config, weights);
  });
}

heed_status heed_layer_from_pretrained(const char* folder, int64_t layer, heed_layer** made) {
  return status_of([&] {
    check_pointer("folder", folder);
    check_pointer("made", made);
    const heed::PretrainedLayer found = heed::from_pretrained(folder, layer);
    *made = new_layer(found.config, found.weights, found.sliding_window.value_or(0));
  });
}

void heed_layer_destroy(heed_layer* layer) { delete layer; }

heed_status heed_layer_call(const heed_layer* layer, const heed_call* given_call,
                            const heed_outputs* given_outputs, const heed_options* given_options) {
  return status_of([&] {
    check_pointer("layer", layer);
    const heed::AttentionLayer::Call call = to_call(given_call);
    const heed::Outputs outputs = to_outputs(read_known("outputs", given_outputs));
    const heed::Options options = to_options(given_options);
    layer->layer(call, outputs, options);
  });
}

heed_status heed_layer_backward(heed_layer* layer, const heed_call* given_call,
                                const heed_layer_gradients* given_gradients,
                                const heed_options* given_options) {
  return status_of([&] {
    check_pointer("layer", layer);
    const heed::AttentionLayer::Call call = to_call(given_call);
    const heed::LayerGradients gradients = to_gradients(given_gradients);
    const heed::Options options = to_options(given_options);
    layer->layer.backward(call, gradients, options);
  });
}

heed_status heed_layer_get_parameters(heed_layer* layer, heed_parameters* parameters) {
  return status_of([&] {
    check_pointer("layer", layer);
    write_known("parameters", from_parameters(layer->layer.parameters()), parameters);
  });
}

heed_status heed_layer_update(heed_layer* layer) {
  return status_of([&] {
    check_pointer("layer", layer);
    layer->layer.update();
  });
}

heed_status heed_layer_get_gradients(heed_layer* layer, heed_parameters* gradients) {
  return status_of([&] {
    check_pointer("layer", layer);
    write_known("gradients", from_parameters(layer->layer.gradients()), gradients);
  });
}

heed_status heed_layer_zero_gradients(heed_layer* layer) {
  return status_of([&] {
    check_pointer("layer", layer);
    layer->layer.zero_gradients();
  });
}

heed_status heed_activations_create(heed_activations** activations) {
  return status_of([&] {
    check_pointer("activations", activations);
    *activations = new heed_activations;
  });
}

void heed_activations_destroy(heed_activations* activations) { delete activations; }

heed_status heed_layer_set_mode(heed_layer* layer, heed_mode mode) {
  return status_of([&] {
    check_pointer("layer", layer);
    layer->layer.set_mode(choose("layer", "mode", mode, modes));
  });
}

heed_status heed_layer_get_config(const heed_layer* layer, heed_layer_config* config) {
  return status_of([&] {
    check_pointer("layer", layer);
    heed_layer_config known = from_config(layer->layer.config());
    if (layer->layer.config().rotary) known.rotary = &layer->rotary;
    write_known("config", known, config);
  });
}

heed_status heed_layer_sliding_window(const heed_layer* layer, int64_t* keys) {
  return status_of([&] {
    check_pointer("layer", layer);
    check_pointer("keys", keys);
    *keys = layer->sliding_window;
  });
}
