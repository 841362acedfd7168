// SPDX-License-Identifier: Apache-2.0
#include "layer_words.hpp"

namespace heed::python {

namespace {

std::string word_for(Element element) {
  switch (element) {
    case Element::f32:
      return "float32";
    case Element::f16:
      return "float16";
    case Element::bf16:
      return "bfloat16";
    default:
      return name_of(element);
  }
}

}  // namespace

std::string in_words(const LayerConfig& config, nb::handle bias, Element element) {
  std::string text = "AttentionLayer(model_dim=" + std::to_string(config.model_dim);
  const auto say = [&text](const char* name, const nb::object& value) {
    text += std::string(", ") + name + "=" + text_of(nb::repr(value));
  };
  say("heads", nb::int_(config.heads));
  say("kv_heads", nb::int_(*config.kv_heads));
  say("head_dim", nb::int_(*config.head_dim));
  if (config.value_head_dim != config.head_dim) say("value_head_dim", nb::int_(*config.value_head_dim));
  if (config.key_dim != config.model_dim) say("key_dim", nb::int_(*config.key_dim));
  if (config.value_dim != config.key_dim) say("value_dim", nb::int_(*config.value_dim));
  if (!bias.is(Py_False)) say("bias", nb::borrow(bias));
  if (config.drop_probability != 0) say("dropout", nb::float_(config.drop_probability));
  if (config.rotary) say("rotary", nb::cast(*config.rotary));
  if (config.head_map == HeadMap::tiled) say("head_map", nb::str("tiled"));
  if (config.device != Device::cpu) say("device", nb::str("cuda"));
  say("dtype", nb::str(word_for(element).c_str()));
  return text + ")";
}

}  // namespace heed::python
