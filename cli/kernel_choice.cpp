// SPDX-License-Identifier: Apache-2.0
// See kernel_choice.hpp.
#include "kernel_choice.hpp"

#include <algorithm>

#include "buffer.hpp"

namespace heed::tool {
namespace {

template <class AnyView>
AnyView with_heads_inside(AnyView view) {
  view.stride = bshd(view.shape);
  return view;
}

}  // namespace

bool computes_with(std::string_view target) {
  const std::string ending = "." + std::string(target);
  return std::ranges::any_of(kernel_names(), [&](const std::string& name) { return name.ends_with(ending); });
}

std::string taken_kernel(const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts)
    if (verdict.choice == Verdict::taken) return verdict.kernel;
  return "";
}

std::vector<Verdict> plan_extents(const ShapeOptions& options, const Extents& extents,
                                  const Options& chosen) {
  const Buffer q({extents.batch, extents.heads, extents.queries, extents.head_dim}, options.dtype);
  const Buffer k({extents.batch, extents.kv_heads, extents.keys, extents.head_dim}, options.dtype);
  const Buffer v(k.shape(), options.dtype);
  Buffer out(q.shape(), options.dtype);
  return plan(
      {.q = with_heads_inside(q.view()), .k = with_heads_inside(k.view()), .v = with_heads_inside(v.view())},
      {.out = with_heads_inside(out.writable())}, chosen);
}

std::string chosen_kernel(const ShapeOptions& options, const Extents& extents, const Options& chosen) {
  const std::string taken = taken_kernel(plan_extents(options, extents, chosen));
  return taken.empty() ? options.kernel : taken;
}

}  // namespace heed::tool
