// SPDX-License-Identifier: Apache-2.0
// _heed._LentLayer: the attention layer over weights that somebody else owns, as a module of PyTorch does.
// They are read where they lie at every call, and nothing of them is kept, so nothing can be out of date.
#include <array>

#include "bindings.hpp"
#include "choices.hpp"
#include "heed/layer.hpp"
#include "layer_question.hpp"
#include "mask_axes.hpp"
#include "outputs.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

constexpr std::array<const char*, 4> matrix_names{"q_proj.weight", "k_proj.weight", "v_proj.weight",
                                                  "o_proj.weight"};
constexpr std::array<const char*, 4> bias_names{"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"};

// Four matrices and four biases, or None for one that is not there.
class LentWeights {
 public:
  explicit LentWeights(const nb::sequence& given) {
    for (std::size_t i = 0; i < 4; ++i) {
      matrices_[i] = read_tensor(matrix_names[i], given[i], Use::copy);
      check_rank(matrices_[i], 2, 2);
      const nb::object bias = given[i + 4];
      if (bias.is_none()) continue;
      biases_[i] = read_tensor(bias_names[i], bias, Use::copy);
      check_rank(*biases_[i], 1, 1);
    }
    views_ = {.w_q = matrix(0),
              .w_k = matrix(1),
              .w_v = matrix(2),
              .w_o = matrix(3),
              .b_q = bias(0),
              .b_k = bias(1),
              .b_v = bias(2),
              .b_o = bias(3)};
  }
  LentWeights(const LentWeights&) = delete;
  LentWeights& operator=(const LentWeights&) = delete;

  const LayerViews& views() const { return views_; }

 private:
  View matrix(std::size_t i) const { return view_of(matrices_[i], right_aligned(matrices_[i])); }
  std::optional<View> bias(std::size_t i) const {
    return biases_[i] ? std::optional<View>(view_of(*biases_[i], right_aligned(*biases_[i]))) : std::nullopt;
  }

  std::array<Tensor, 4> matrices_;
  std::array<std::optional<Tensor>, 4> biases_;
  LayerViews views_{};
};

class LentLayer {
 public:
  explicit LentLayer(const LayerConfig& config) : layer_(config) {
    if (config.drop_probability > 0) layer_.set_mode(AttentionLayer::Mode::train);
  }
  const LayerConfig& config() const { return layer_.config(); }

  nb::object call(const nb::sequence& weights, nb::handle x, nb::handle context, nb::handle value,
                  const nb::kwargs& keywords) const {
    const LayerQuestion question({x, context, value, config().heads}, keywords, Caller::layer);
    const LentWeights lent(weights);
    AttentionLayer::Call call = question.call();
    call.weights = &lent.views();
    const Choices& choices = question.choices();
    const Shape scores = question.scores(config().heads);
    Asked asked(question.x(), scores, config().model_dim, choices);
    compute(choices, scores, [&] { layer_(call, asked.outputs(), choices.options); });
    return asked.results();
  }

 private:
  AttentionLayer layer_;
};

}  // namespace

void define_lent_layer(nb::module_& m) {
  nb::class_<LentLayer>(m, "_LentLayer", "The attention layer over weights that are lent with every call.")
      .def(
          "__init__",
          [](LentLayer* self, nb::handle model_dim, nb::handle heads, nb::handle kv_heads,
             nb::handle head_dim, nb::handle value_dim, nb::handle key_dim, nb::handle value_head_dim,
             nb::handle rotary, nb::handle head_map, nb::handle dropout) {
            const LayerWords words{model_dim, heads,          kv_heads, head_dim, value_dim,
                                   key_dim,   value_head_dim, rotary,   head_map};
            LayerConfig config = read_extents(words);
            config.drop_probability = read_float("dropout", dropout);
            read_the_rest(words, config);
            new (self) LentLayer(config);
          },
          nb::kw_only(), nb::arg("model_dim").none(), nb::arg("heads").none(), nb::arg("kv_heads").none(),
          nb::arg("head_dim").none(), nb::arg("value_dim").none(), nb::arg("key_dim").none(),
          nb::arg("value_head_dim").none(), nb::arg("rotary").none(), nb::arg("head_map").none(),
          nb::arg("dropout").none())
      .def("__call__", &LentLayer::call, nb::arg("weights"), nb::arg("x").none(), nb::arg("context").none(),
           nb::arg("value").none(), nb::arg("options"))
      .def_prop_ro("heads", [](const LentLayer& self) { return self.config().heads; })
      .def_prop_ro("kv_heads", [](const LentLayer& self) { return *self.config().kv_heads; })
      .def_prop_ro("head_dim", [](const LentLayer& self) { return *self.config().head_dim; })
      .def_prop_ro("value_head_dim", [](const LentLayer& self) { return *self.config().value_head_dim; })
      .def_prop_ro("model_dim", [](const LentLayer& self) { return self.config().model_dim; })
      .def_prop_ro("key_dim", [](const LentLayer& self) { return *self.config().key_dim; })
      .def_prop_ro("value_dim", [](const LentLayer& self) { return *self.config().value_dim; });
}

}  // namespace heed::python
