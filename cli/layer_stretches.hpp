// SPDX-License-Identifier: Apache-2.0
// The attention weights of a layer, a stretch of queries at a time: never queries x keys at once.
#pragma once
#include <functional>

#include "heed/view.hpp"
#include "hidden_keys.hpp"
#include "layer_job.hpp"

namespace heed::tool {

// How many queries of so many heads over so many keys are a stretch.
std::int64_t stretch_of(const Extents&);

// Calls use(rows) for every stretch of one batch entry, in order. The weights have the bits of the layer over
// the whole.
void for_every_stretch(const LayerJob&, std::int64_t batch_entry, HiddenKeys&,
                       const std::function<void(const view::Rows&)>& use);

}  // namespace heed::tool
