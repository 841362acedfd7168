// SPDX-License-Identifier: Apache-2.0
// What a layer is made of and what it is asked, whether one process has it or several.
#pragma once
#include <optional>
#include <string>

#include "choices.hpp"
#include "heed/files.hpp"
#include "heed/layer.hpp"

namespace heed::python {

struct LayerWords {
  nb::handle model_dim, heads, kv_heads, head_dim, value_dim, key_dim, value_head_dim, rotary, head_map;
};
// In the order of the signature, in which what only one of the layers has comes between.
LayerConfig read_extents(const LayerWords&);
void read_the_rest(const LayerWords&, LayerConfig&);

// What a dict says under a name; refused where it says nothing.
nb::object entry_of(nb::handle state, const char* name);
// As a dict has them, under their own names.
LayerWords words_of(nb::handle state);

// Those of a dict or any other mapping whose names begin so; nothing where it is none.
std::optional<Arrays> arrays_of_mapping(nb::handle from, const std::string& prefix);
std::string read_checkpoint_path(nb::handle from);

class LayerQuestion {
 public:
  struct Arguments {
    nb::handle x, context, value;
    std::int64_t heads;  // of the layer, or of a rank's share
  };
  LayerQuestion(const Arguments&, const nb::kwargs& keywords, Caller);
  LayerQuestion(const LayerQuestion&) = delete;
  LayerQuestion& operator=(const LayerQuestion&) = delete;

  const Tensor& x() const { return x_; }
  const Choices& choices() const { return choices_; }
  const AttentionLayer::Call& call() const { return call_; }
  Shape scores(std::int64_t heads) const {
    const Shape& x = call_.x.shape;
    return {x.batch, heads, x.length, keys_};
  }

 private:
  // A sequence that need not be given.
  struct Given {
    std::optional<Tensor> tensor{};
    std::optional<View> view{};
    Given(const char* name, nb::handle object, const Tensor& x, Where);
  };

  Where where_;  // what ranks share lies in the CPU's memory
  Tensor x_;
  Given context_, value_;
  Choices choices_;
  AttentionLayer::Call call_;
  std::int64_t keys_;
};

}  // namespace heed::python
