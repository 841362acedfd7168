// SPDX-License-Identifier: Apache-2.0
// A layer in words: its repr().
#pragma once
#include "heed/files.hpp"
#include "heed/layer.hpp"
#include "refusal.hpp"

namespace heed::python {

// What follows from the rest is left out: a value_head_dim that is the head_dim, a key_dim that is the
// model_dim.
std::string in_words(const LayerConfig& config, nb::handle bias, Element element);

}  // namespace heed::python
