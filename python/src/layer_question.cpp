// SPDX-License-Identifier: Apache-2.0
#include "layer_question.hpp"

#include <algorithm>

#include "question.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

std::optional<std::int64_t> read_extent(const char* name, nb::handle object) {
  return object.is_none() ? std::nullopt : std::optional(read_integer(name, object));
}

std::optional<Rotary> read_rotary(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  if (!nb::isinstance<Rotary>(object)) throw wrong_kind("rotary", object, "a heed.Rotary");
  return nb::cast<const Rotary&>(object);
}

// x, context or value: (batch, length, width) or (length, width) as (batch, 1, length, width).
View sequence(const Tensor& tensor) {
  Placed placed = right_aligned(tensor);
  std::swap(placed.shape.batch, placed.shape.heads);
  std::swap(placed.stride.batch, placed.stride.heads);
  return view_of(tensor, placed);
}

// How many keys the longest batch entry attends to: columns of weights and scores.
std::int64_t keys_of(const AttentionLayer::Call& call, const Choices& choices) {
  const Shape& x = call.x.shape;
  check_not_empty("counts", choices.counts, x.batch, "sequence");
  check_not_empty("sequences", choices.sequences, x.batch, "batch entry");
  check_not_empty("positions", choices.positions, x.elements(), "token");
  check_not_empty("key_positions", choices.key_positions, call.context.value_or(call.x).shape.elements(),
                  "token");
  if (!call.cache) return call.context.value_or(call.x).shape.length;
  std::vector<std::int64_t> added(static_cast<std::size_t>(x.batch), x.length);
  for (std::size_t b = 0; b < std::min(added.size(), call.counts.size()); ++b)  // not checked yet
    added[b] = std::clamp<std::int64_t>(call.counts[b], 0, x.length);
  return longest(*call.cache, call.sequences, x.batch, added);
}

Arrays arrays_of(const nb::dict& named, const std::string& prefix) {
  Arrays arrays;
  for (const auto& [key, value] : named) {
    const std::string name = read_word("the checkpoint's name", key);
    if (name.starts_with(prefix))
      arrays.emplace(name, packed_copy(read_tensor(name.c_str(), value, Use::copy)));
  }
  return arrays;
}

}  // namespace

LayerConfig read_extents(const LayerWords& words) {
  LayerConfig config{.model_dim = read_integer("model_dim", words.model_dim)};
  config.heads = read_integer("heads", words.heads);
  config.kv_heads = read_extent("kv_heads", words.kv_heads);
  config.head_dim = read_extent("head_dim", words.head_dim);
  config.value_dim = read_extent("value_dim", words.value_dim);
  config.key_dim = read_extent("key_dim", words.key_dim);
  return config;
}

nb::object entry_of(nb::handle state, const char* name) {
  if (!nb::isinstance<nb::dict>(state)) throw wrong_kind("state", state, "a dict");
  const auto dict = nb::borrow<nb::dict>(state);
  if (!dict.contains(name)) throw Error(Error::value, std::string("state: there is no \"") + name + "\"");
  return dict[name];
}

LayerWords words_of(nb::handle state) {
  const auto word = [&](const char* name) { return nb::handle(entry_of(state, name)); };
  return {word("model_dim"), word("heads"),          word("kv_heads"), word("head_dim"), word("value_dim"),
          word("key_dim"),   word("value_head_dim"), word("rotary"),   word("head_map")};
}

void read_the_rest(const LayerWords& words, LayerConfig& config) {
  config.rotary = read_rotary(words.rotary);
  config.head_map = read_head_map(words.head_map);
  config.value_head_dim = read_extent("value_head_dim", words.value_head_dim);
}

std::optional<Arrays> arrays_of_mapping(nb::handle from, const std::string& prefix) {
  if (nb::isinstance<nb::dict>(from)) return arrays_of(nb::cast<nb::dict>(from), prefix);
  if (!nb::hasattr(from, "keys")) return std::nullopt;
  return arrays_of(nb::cast<nb::dict>(nb::handle(reinterpret_cast<PyObject*>(&PyDict_Type))(from)), prefix);
}

std::string read_checkpoint_path(nb::handle from) {
  return read_path("weights", from, "a dict of arrays or the path of a safetensors file");
}

LayerQuestion::Given::Given(const char* name, nb::handle object, const Tensor& x, Where where) {
  if (object.is_none()) return;
  tensor.emplace(read_tensor(name, object, Use::read, where));
  check_same_rank(*tensor, x);
  view = sequence(*tensor);
}

LayerQuestion::LayerQuestion(const Arguments& a, const nb::kwargs& keywords, Caller caller)
    : where_(caller == Caller::layer ? Where::any : Where::cpu),
      x_(read_tensor("x", a.x, Use::read, where_)),
      context_("context", a.context, (check_rank(x_, 2, 3), x_), where_),
      value_("value", a.value, x_, where_),
      choices_(read_choices(caller, keywords)),
      call_{.x = sequence(x_),
            .context = context_.view,
            .value = value_.view,
            .cache = choices_.cache,
            .sequences = entries_of(choices_.sequences),
            .counts = entries_of(choices_.counts),
            .positions = entries_of(choices_.positions),
            .key_positions = entries_of(choices_.key_positions),
            .dropout_seed = choices_.seed},
      keys_(keys_of(call_, choices_)) {
  const std::int64_t queries = call_.x.shape.length;
  check_alignment(choices_, queries, keys_);
  check_columns(choices_, {queries, keys_, a.heads});
}

}  // namespace heed::python
