// SPDX-License-Identifier: Apache-2.0
// The options of attention() as the flags ask for them, with the memory that they view.
#pragma once
#include <deque>
#include <optional>
#include <vector>

#include "buffer.hpp"
#include "heed/attention.hpp"
#include "heed/files.hpp"
#include "shape_options.hpp"

namespace heed::tool {

struct CallOptions {
  Options options{};  // may view the others, whose memory stays where it is when this moves

  std::optional<HideMatrix> padding{};
  std::vector<std::int32_t> documents{}, key_lengths{};
  std::vector<float> slopes{};
  std::deque<Buffer> numbers{};
  std::deque<Array> booleans{};
};

// Reads the files and refuses those that do not fit the extents.
CallOptions make_options(const ShapeOptions&, const Extents&);

}  // namespace heed::tool
