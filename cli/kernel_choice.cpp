// SPDX-License-Identifier: Apache-2.0
// See kernel_choice.hpp.
#include "kernel_choice.hpp"

#include <sstream>

#include "buffer.hpp"

namespace heed::tool {
namespace {

template <class AnyView>
AnyView with_heads_inside(AnyView view) {
  view.stride = bshd(view.shape);
  return view;
}

}  // namespace

std::vector<Verdict> verdicts_of(const std::string& explanation) {
  std::vector<Verdict> verdicts;
  std::istringstream lines(explanation);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t words = line.find_first_not_of(' ', colon + 1);
    Verdict verdict{.kernel = line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' ')),
                    .words = words == std::string::npos ? "" : line.substr(words)};
    verdict.taken = verdict.words.starts_with("taken");
    verdicts.push_back(verdict);
  }
  return verdicts;
}

std::string taken_kernel(const std::string& explanation) {
  for (const Verdict& verdict : verdicts_of(explanation))
    if (verdict.taken) return verdict.kernel;
  return "";
}

std::string explain_extents(const ShapeOptions& options, const Extents& extents, const OwnedMasks& masks) {
  const Buffer q({extents.batch, extents.heads, extents.queries, extents.head_dim}, options.dtype);
  const Buffer k({extents.batch, extents.kv_heads, extents.keys, extents.head_dim}, options.dtype);
  const Buffer v(k.shape(), options.dtype);
  Buffer out(q.shape(), options.dtype);
  return explain(
      {.q = with_heads_inside(q.view()), .k = with_heads_inside(k.view()), .v = with_heads_inside(v.view())},
      {.out = with_heads_inside(out.writable())}, {.masks = masks.masks, .kernel = options.kernel});
}

std::string chosen_kernel(const ShapeOptions& options, const Extents& extents, const OwnedMasks& masks) {
  const std::string taken = taken_kernel(explain_extents(options, extents, masks));
  return taken.empty() ? options.kernel : taken;
}

}  // namespace heed::tool
