// SPDX-License-Identifier: Apache-2.0
// The layer as c.h has it.
#include "heed/layer.hpp"

#include "c/call.hpp"
#include "c/choice.hpp"
#include "c/handles.hpp"
#include "c/layer_config.hpp"
#include "c/qualified.hpp"
#include "c/rotary.hpp"
#include "c/sized.hpp"
#include "c/status.hpp"
#include "c/views.hpp"
#include "heed/pretrained.hpp"

namespace heed::c {
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
  return call;
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
