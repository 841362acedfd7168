// SPDX-License-Identifier: Apache-2.0
// What heed.distributed.AttentionLayer is made of: one rank's part of a layer.
#include "heed/distributed_layer.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.hpp"
#include "distributed_docs.hpp"
#include "layer_question.hpp"
#include "mask_axes.hpp"
#include "others_run.hpp"
#include "outputs.hpp"
#include "together.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

LayerConfig config_of(const nb::dict& given) {
  const LayerWords words = words_of(given);
  LayerConfig config = read_extents(words);
  read_the_rest(words, config);
  return config;
}

// Of a file only what is this rank's is read.
LayerWeights read_part(nb::handle from, const std::string& prefix, const LayerConfig& config,
                       const LayerShare& share) {
  if (const std::optional<Arrays> arrays = arrays_of_mapping(from, prefix))
    return weights_of_share(layer_weights(*arrays, prefix), config, share);
  const std::string file = read_checkpoint_path(from);
  const OthersRun others_run;
  return weights_of_share(file, config, share, prefix);
}

// What a rank was asked, and room for the answer. A log-sum-exp has the heads of the share.
struct LayerAsking {
  LayerQuestion question;
  Shape scores;
  Asked asked;

  LayerAsking(const LayerOverRanks& layer, const LayerQuestion::Arguments& arguments,
              const nb::kwargs& keywords)
      : question(arguments, keywords, Caller::layer_over_ranks),
        scores(question.scores(layer.share().heads)),
        asked(question.x(), scores, layer.config().model_dim, question.choices()) {}
};

nb::object call(const LayerOverRanks& layer, Group& group, nb::handle x, nb::handle context, nb::handle value,
                const nb::kwargs& keywords) {
  const LayerQuestion::Arguments arguments{x, context, value, layer.share().heads};
  const auto asking = read_together<LayerAsking>(group, layer, arguments, keywords);
  const Choices& choices = asking->question.choices();
  compute(choices, asking->scores,
          [&] { layer(group, asking->question.call(), asking->asked.outputs(), choices.options); });
  return asking->asked.results();
}

}  // namespace

void define_distributed_layer(nb::module_& m) {
  nb::class_<LayerOverRanks>(m, "LayerOverRanks", layer_over_ranks_doc)
      .def(
          "__init__",
          [](LayerOverRanks* self, nb::handle over, nb::handle weights, nb::handle prefix,
             const nb::dict& config) {
            const Group& group = read_group(over);
            const LayerConfig whole = config_of(config);
            const LayerShare share = share_of_layer(whole, group.rank(), group.size());
            const LayerWeights part = read_part(weights, read_word("prefix", prefix), whole, share);
            new (self) LayerOverRanks(whole, part, group.rank(), group.size());
          },
          nb::arg("group").none(), nb::arg("weights").none(), nb::arg("prefix").none(), nb::arg("config"))
      .def("__call__", &call, nb::arg("group"), nb::arg("x").none(), nb::arg("context").none(),
           nb::arg("value").none(), nb::arg("options"), layer_over_ranks_call_doc)
      .def_prop_ro(
          "share",
          [](const LayerOverRanks& self) {
            const LayerShare& s = self.share();
            return std::tuple(s.first_head, s.heads, s.first_kv_head, s.kv_heads, s.first_output, s.outputs);
          },
          layer_share_doc);
}

}  // namespace heed::python
