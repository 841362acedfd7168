// SPDX-License-Identifier: Apache-2.0
// See layer_stretches.hpp.
#include "layer_stretches.hpp"

#include <algorithm>
#include <numeric>

namespace heed::tool {
namespace {

constexpr std::int64_t bytes_of_a_stretch = 256 << 20;

View entry_of(const Buffer& buffer, std::int64_t entry, std::int64_t first, std::int64_t count) {
  View view = buffer.view();
  const std::int64_t elements = entry * view.stride.batch + first * view.stride.length;
  view.data =
      static_cast<const std::byte*>(view.data) + elements * static_cast<std::int64_t>(bytes_of(view.dtype));
  view.shape.batch = 1;
  view.shape.length = count;
  return view;
}

}  // namespace

std::int64_t stretch_of(const Extents& extents) {
  const std::int64_t row_bytes = extents.heads * extents.keys * 4;
  return std::clamp<std::int64_t>(bytes_of_a_stretch / std::max<std::int64_t>(1, row_bytes), 16,
                                  std::max<std::int64_t>(16, extents.queries));
}

void for_every_stretch(const LayerJob& job, std::int64_t batch_entry, HiddenKeys& hidden,
                       const std::function<void(const view::Rows&)>& use) {
  const Extents& extents = job.extents;
  const std::int64_t stretch = std::min(stretch_of(extents), extents.queries);
  const AttentionLayer layer(job.config, job.weights);
  Buffer weights({1, extents.heads, stretch, extents.keys}),
      out({1, 1, stretch, extents.model_dim}, job.x.view().dtype);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(stretch));
  for (std::int64_t first = 0; first < extents.queries; first += stretch) {
    const std::int64_t rows = std::min(stretch, extents.queries - first),
                       seen = hidden.keys_seen(first, rows);
    MutableView into = weights.writable(), answer = out.writable();
    into.shape.length = answer.shape.length = rows;
    weights.fill(0);
    if (seen > 0) {
      // Later keys are seen by nobody here, so they are not asked for.
      MutableView seen_weights = into;
      seen_weights.shape.dim = seen;
      std::iota(positions.begin(), positions.end(), first);
      AttentionLayer::Call call{
          .x = entry_of(job.x, batch_entry, first, rows),
          .context = entry_of(job.context ? *job.context : job.x, batch_entry, 0, seen)};
      if (job.config.rotary) call.positions = std::span(positions).first(static_cast<std::size_t>(rows));
      layer(call, {.out = answer, .weights = seen_weights}, of_layer(hidden.options_of(first, rows, seen)));
    }
    view::Rows shown{.weights = into};
    if (hidden.hides_any()) shown.hidden = hidden.rows(first, rows);
    use(shown);
  }
}

}  // namespace heed::tool
