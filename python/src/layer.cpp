// SPDX-License-Identifier: Apache-2.0
// heed.AttentionLayer: projections, heads and attention around one set of weights.
#include "heed/layer.hpp"

#include <nanobind/stl/optional.h>

#include <memory>

#include "bindings.hpp"
#include "cache_options.hpp"
#include "choices.hpp"
#include "copies.hpp"
#include "heed/pretrained.hpp"
#include "layer_docs.hpp"
#include "layer_question.hpp"
#include "layer_words.hpp"
#include "mask_axes.hpp"
#include "others_run.hpp"
#include "outputs.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

enum class Biases : std::uint8_t { none, qkv, all };

Biases read_biases(nb::handle object) {
  if (nb::isinstance<nb::str>(object) && nb::cast<std::string>(object) == "qkv") return Biases::qkv;
  return read_flag("bias", object) ? Biases::all : Biases::none;
}

Naming read_naming(nb::handle object) {
  const std::string word = read_word("naming", object);
  if (word == "paper") return Naming::paper;
  if (word == "torch") return Naming::torch;
  if (word == "llama") return Naming::llama;
  throw Error(Error::value, "naming: \"" + word + "\" is none of \"paper\", \"torch\", \"llama\"");
}

LayerWeights first_weights(const LayerConfig& config, Biases biases, std::uint64_t seed) {
  LayerWeights weights = random_weights(config, seed);
  const auto zeros = [](std::int64_t count) {
    return heed::Array::from_floats({count}, std::vector<float>(static_cast<std::size_t>(count)));
  };
  if (biases != Biases::none) {
    weights.b_q = zeros(weights.w_q.shape[0]);
    weights.b_k = zeros(weights.w_k.shape[0]);
    weights.b_v = zeros(weights.w_v.shape[0]);
  }
  if (biases == Biases::all) weights.b_o = zeros(weights.w_o.shape[0]);
  return weights;
}

void check_bias(const char* name, const std::optional<heed::Array>& bias, bool is_wanted) {
  if (bias && !is_wanted)
    throw Error(Error::value,
                std::string(name) + ": in the checkpoint, but the layer was made without it; see bias=");
  if (!bias && is_wanted)
    throw Error(Error::value,
                std::string(name) + ": not in the checkpoint, but the layer was made with it; see bias=");
}

void check_biases(const LayerWeights& weights, Biases biases) {
  check_bias("q's bias", weights.b_q, biases != Biases::none);
  check_bias("k's bias", weights.b_k, biases != Biases::none);
  check_bias("v's bias", weights.b_v, biases != Biases::none);
  check_bias("the output's bias", weights.b_o, biases == Biases::all);
}

Arrays read_checkpoint(nb::handle from, const std::string& prefix) {
  if (std::optional<Arrays> arrays = arrays_of_mapping(from, prefix)) return *std::move(arrays);
  const std::string file = read_checkpoint_path(from);
  const OthersRun others_run;
  return read_safetensors(file);
}

Biases biases_of(const LayerWeights& weights) {
  return weights.b_o ? Biases::all : weights.b_q ? Biases::qkv : Biases::none;
}

class Layer {
 public:
  explicit Layer(PretrainedLayer pretrained)
      : biases_(biases_of(pretrained.weights)),
        sliding_window_(pretrained.sliding_window),
        layer_(std::make_shared<AttentionLayer>(pretrained.config, pretrained.weights)) {}
  Layer(const LayerConfig& config, Biases biases, std::uint64_t seed)
      : biases_(biases),
        layer_(std::make_shared<AttentionLayer>(config, first_weights(config, biases, seed))) {}

  const LayerConfig& config() const { return layer_->config(); }
  Biases biases() const { return biases_; }
  std::optional<std::int64_t> sliding_window() const { return sliding_window_; }
  Element element() const { return layer_->weights().w_q.element; }
  bool is_training() const { return layer_->mode() == AttentionLayer::Mode::train; }
  void set_training(bool training) {
    layer_->set_mode(training ? AttentionLayer::Mode::train : AttentionLayer::Mode::eval);
  }

  // All or nothing: a checkpoint that is refused leaves the weights as they were, and a call that is under
  // way in another thread finishes with those it began with.
  void load(nb::handle from, nb::handle prefix_word) {
    const std::string prefix = read_word("prefix", prefix_word);
    const LayerWeights weights = layer_weights(read_checkpoint(from, prefix), prefix);
    check_biases(weights, biases_);
    auto loaded = std::make_shared<AttentionLayer>(config(), weights);
    loaded->set_mode(layer_->mode());
    layer_ = std::move(loaded);
  }

  nb::dict state_dict(Naming naming) const { return numpy_arrays(to_arrays(layer_->weights(), naming)); }

  // The arguments it was made with, as LayerWords and from_state() read them; its weights and its mode.
  nb::dict state() const {
    const LayerConfig& c = config();
    nb::dict state;
    state["model_dim"] = c.model_dim;
    state["heads"] = c.heads;
    state["kv_heads"] = *c.kv_heads;
    state["head_dim"] = *c.head_dim;
    state["value_dim"] = *c.value_dim;
    state["key_dim"] = *c.key_dim;
    state["value_head_dim"] = *c.value_head_dim;
    state["rotary"] = nb::cast(c.rotary);
    state["head_map"] = c.head_map == HeadMap::tiled ? "tiled" : "interleaved";
    state["dropout"] = c.drop_probability;
    state["device"] = c.device == Device::cpu ? "cpu" : "cuda";
    state["sliding_window"] = nb::cast(sliding_window_);
    state["training"] = is_training();
    state["weights"] = state_dict(Naming::paper);
    return state;
  }

  static Layer from_state(nb::handle state) {
    const LayerWords words = words_of(state);
    PretrainedLayer told{.config = read_extents(words)};
    read_the_rest(words, told.config);
    told.config.drop_probability = read_float("dropout", entry_of(state, "dropout"));
    told.config.device = read_device(entry_of(state, "device"));
    if (const nb::object window = entry_of(state, "sliding_window"); !window.is_none())
      told.sliding_window = read_integer("sliding_window", window);
    const nb::object weights = entry_of(state, "weights");
    const std::optional<Arrays> arrays = arrays_of_mapping(weights, "");
    if (!arrays) throw wrong_kind("weights", weights, "a dict of arrays");
    told.weights = layer_weights(*arrays, "");
    Layer made(std::move(told));
    made.set_training(read_flag("training", entry_of(state, "training")));
    return made;
  }

  Layer copy() const {
    Layer made({config(), layer_->weights(), sliding_window_});
    made.set_training(is_training());
    return made;
  }

  nb::object call(nb::handle x, nb::handle context, nb::handle value, const nb::kwargs& keywords) const {
    const LayerQuestion question({x, context, value, config().heads}, keywords, Caller::layer);
    const Choices& choices = question.choices();
    const std::shared_ptr<const AttentionLayer> layer = layer_;
    const Shape scores = question.scores(config().heads);
    Asked asked(question.x(), scores, config().model_dim, choices);
    compute(choices, scores, [&] { (*layer)(question.call(), asked.outputs(), choices.options); });
    return asked.results();
  }

 private:
  Biases biases_;
  std::optional<std::int64_t> sliding_window_{};
  std::shared_ptr<AttentionLayer> layer_;
};

Layer layer_from_pretrained(nb::handle folder, nb::handle layer) {
  const std::string path = read_path("folder", folder, "the path of a folder");
  const std::int64_t number = read_integer("layer", layer);
  const OthersRun others_run;
  return Layer(from_pretrained(path, number));
}

nb::object bias_in_words(Biases biases) {
  return biases == Biases::qkv ? nb::cast("qkv") : nb::cast(biases == Biases::all);
}

void define_making(nb::class_<Layer>& type) {
  type.def(
      "__init__",
      [](Layer* self, nb::handle model_dim, nb::handle heads, nb::handle kv_heads, nb::handle head_dim,
         nb::handle value_dim, nb::handle key_dim, nb::handle bias, nb::handle dropout, nb::handle rotary,
         nb::handle head_map, nb::handle value_head_dim, nb::handle seed, nb::handle device) {
        const LayerWords words{model_dim, heads,          kv_heads, head_dim, value_dim,
                               key_dim,   value_head_dim, rotary,   head_map};
        LayerConfig config = read_extents(words);
        const Biases biases = read_biases(bias);
        config.drop_probability = read_float("dropout", dropout);
        read_the_rest(words, config);
        config.device = read_device(device);
        new (self) Layer(config, biases, read_seed(seed));
      },
      nb::arg("model_dim").none(), nb::arg("heads").none(), nb::arg("kv_heads") = nb::none(),
      nb::arg("head_dim") = nb::none(), nb::arg("value_dim") = nb::none(), nb::arg("key_dim") = nb::none(),
      nb::arg("bias").none() = false, nb::arg("dropout").none() = 0.0, nb::arg("rotary") = nb::none(),
      nb::arg("head_map").none() = "interleaved", nb::kw_only(), nb::arg("value_head_dim") = nb::none(),
      nb::arg("seed").none() = 0, nb::arg("device").none() = "cpu", nb::sig(layer_signature));
}

void define_properties(nb::class_<Layer>& type) {
  type.def_prop_ro(
          "model_dim", [](const Layer& self) { return self.config().model_dim; }, "Width of x.")
      .def_prop_ro(
          "heads", [](const Layer& self) { return self.config().heads; }, "Query heads.")
      .def_prop_ro(
          "kv_heads", [](const Layer& self) { return *self.config().kv_heads; }, "Key and value heads.")
      .def_prop_ro(
          "head_dim", [](const Layer& self) { return *self.config().head_dim; },
          "Dimensions of a query or key head.")
      .def_prop_ro(
          "value_head_dim", [](const Layer& self) { return *self.config().value_head_dim; },
          "Dimensions of a value head.")
      .def_prop_ro(
          "key_dim", [](const Layer& self) { return *self.config().key_dim; }, "Width of the context.")
      .def_prop_ro(
          "value_dim", [](const Layer& self) { return *self.config().value_dim; },
          "Width of the value input.")
      .def_prop_ro(
          "bias", [](const Layer& self) { return bias_in_words(self.biases()); },
          nb::for_getter(nb::sig("def bias(self, /) -> bool | typing.Literal['qkv']")),
          "True: all four projections have one; \"qkv\": all but the output's.")
      .def_prop_ro(
          "rotary", [](const Layer& self) { return self.config().rotary; },
          "The rotary embedding; None: none.")
      .def_prop_ro(
          "dropout", [](const Layer& self) { return self.config().drop_probability; },
          "Of the attention weights, in training.")
      .def_prop_ro(
          "device", [](const Layer& self) { return self.config().device == Device::cpu ? "cpu" : "cuda"; },
          nb::for_getter(nb::sig("def device(self, /) -> typing.Literal['cpu', 'cuda']")),
          "'cpu' or 'cuda': where it computes, and where x lies.")
      .def_prop_ro("sliding_window", &Layer::sliding_window, sliding_window_doc)
      .def_prop_ro("training", &Layer::is_training, "Whether dropout applies.");
}

nb::object set_training(nb::handle self, bool training) {
  if (!nb::isinstance<Layer>(self)) throw wrong_kind("self", self, "a heed.AttentionLayer");
  nb::cast<Layer&>(self).set_training(training);
  return nb::borrow(self);
}

void define_copying(nb::module_& m, nb::class_<Layer>& type) {
  type.def("__reduce__",
           [](nb::handle self) {
             return reduced(self, "restored_layer", nb::cast<const Layer&>(self).state());
           })
      .def(
          "__deepcopy__",
          [](nb::handle self, const nb::dict& memo) {
            return deep_copied(self, memo, object_of(self.type(), nb::cast<const Layer&>(self).copy()));
          },
          nb::arg("memo"));
  m.def(
      "restored_layer",
      [](nb::handle cls, nb::handle state) {
        check_class<Layer>(cls, "heed.AttentionLayer");
        return object_of(cls, Layer::from_state(state));
      },
      nb::arg("cls").none(), nb::arg("state").none(), restored_layer_doc);
}

}  // namespace

void define_layer(nb::module_& m) {
  nb::class_<Layer> type(m, "AttentionLayer", layer_doc);
  define_making(type);
  define_properties(type);
  // The first takes every call; the others are for type checkers.
  for (const std::string& signature :
       overloads_of(Caller::layer,
                    "__call__(self, x: ArrayT, context: ArrayT | None = None, value: ArrayT | None = None, *",
                    "bool | typing.Literal['average']", "True, 'average'"))
    type.def("__call__", &Layer::call, nb::arg("x").none(), nb::arg("context") = nb::none(),
             nb::arg("value") = nb::none(), nb::arg("options"), nb::sig(signature.c_str()), layer_call_doc);
  type.def_static("from_pretrained", &layer_from_pretrained, nb::arg("folder").none(),
                  nb::arg("layer").none() = 0,
                  nb::sig("def from_pretrained(folder: typing.Any, layer: int = 0) -> AttentionLayer"),
                  from_pretrained_doc)
      .def("load", &Layer::load, nb::arg("weights").none(), nb::arg("prefix").none() = "",
           nb::sig("def load(self, weights: typing.Any, prefix: str = '') -> None"), load_doc)
      .def(
          "state_dict",
          [](const Layer& self, nb::handle naming) { return self.state_dict(read_naming(naming)); },
          nb::arg("naming").none() = "paper",
          nb::sig("def state_dict(self, naming: typing.Literal['paper', 'torch', 'llama'] = 'paper') -> "
                  "dict[str, numpy.typing.NDArray[typing.Any]]"),
          state_dict_doc)
      .def(
          "train",
          [](nb::handle self, nb::handle mode) { return set_training(self, read_flag("mode", mode)); },
          nb::arg("mode").none() = true, nb::sig("def train(self, mode: bool = True) -> AttentionLayer"),
          train_doc)
      .def(
          "eval", [](nb::handle self) { return set_training(self, false); },
          nb::sig("def eval(self) -> AttentionLayer"), eval_doc)
      .def("__repr__", [](const Layer& self) {
        return in_words(self.config(), bias_in_words(self.biases()), self.element());
      });
  define_copying(m, type);
}

}  // namespace heed::python
