// SPDX-License-Identifier: Apache-2.0
#include "c/masks.hpp"

#include <cstddef>
#include <limits>

#include "c/choice.hpp"
#include "c/qualified.hpp"
#include "c/sized.hpp"
#include "c/tagged.hpp"
#include "c/views.hpp"

namespace heed::c {
namespace {

std::optional<Align> take_align(heed_mask& mask) { return to_align("", "align", take(mask.align)); }

BoolView take_where(heed_mask& mask) { return to_view(".where", take(mask.where)); }

using MakeMask = Mask (*)(heed_mask&);
constexpr std::array kinds{
    Choice<MakeMask>{HEED_MASK_CAUSAL, "HEED_MASK_CAUSAL",
                     [](heed_mask& m) -> Mask { return Causal{take_align(m)}; }},
    Choice<MakeMask>{HEED_MASK_WINDOW, "HEED_MASK_WINDOW",
                     [](heed_mask& m) -> Mask {
                       return Window{take(m.left), take(m.right), take_align(m), take(m.front)};
                     }},
    Choice<MakeMask>{HEED_MASK_KEY_LENGTHS, "HEED_MASK_KEY_LENGTHS",
                     [](heed_mask& m) -> Mask { return KeyLengths{to_span(".valid", take(m.valid))}; }},
    Choice<MakeMask>{HEED_MASK_KEEP, "HEED_MASK_KEEP",
                     [](heed_mask& m) -> Mask { return Keep{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_HIDE, "HEED_MASK_HIDE",
                     [](heed_mask& m) -> Mask { return Hide{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_TREE, "HEED_MASK_TREE",
                     [](heed_mask& m) -> Mask { return Tree{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_DOCUMENT, "HEED_MASK_DOCUMENT",
                     [](heed_mask& m) -> Mask {
                       return Document{.ids = to_span(".ids", take(m.ids)),
                                       .align = take_align(m),
                                       .query_ids = to_span(".query_ids", take(m.query_ids))};
                     }},
};

void check_nothing_left(const heed_mask& mask) {
  const auto& [kind, align, left, right, front, valid, where, ids, query_ids] = mask;
  if (align || left || right || front || are_given(valid) || is_given(where) || are_given(ids) ||
      are_given(query_ids))
    throw something_left(kind);
}

Mask to_mask(heed_mask mask) {
  const Mask made = choose("", "kind", mask.kind, kinds)(mask);
  check_nothing_left(mask);
  return made;
}

}  // namespace

std::optional<Align> to_align(const char* name, const char* field, heed_align number) {
  constexpr std::array aligns{
      Choice<std::optional<Align>>{0, "0", std::nullopt},
      Choice<std::optional<Align>>{HEED_ALIGN_STARTS, "HEED_ALIGN_STARTS", Align::starts},
      Choice<std::optional<Align>>{HEED_ALIGN_ENDS, "HEED_ALIGN_ENDS", Align::ends},
  };
  return choose(name, field, number, aligns);
}

void add_masks(const heed_masks& masks, Options& options) {
  if (masks.count == 0) return;
  check_pointer("options.masks.data", masks.data);
  constexpr std::size_t max_bytes = std::numeric_limits<std::ptrdiff_t>::max();
  if (masks.size > 0 && masks.count > max_bytes / masks.size)
    throw refusal(Error::value, "options.masks.count: ", masks.count,
                  " masks are more than any memory holds");
  const auto* bytes = reinterpret_cast<const std::byte*>(masks.data);
  for (std::size_t i = 0; i < masks.count; ++i) {
    const heed_mask mask = read_known<heed_mask>("options.masks", bytes + i * masks.size, masks.size);
    const auto made = [&] { return to_mask(mask); };
    options.masks.push_back(qualified(made, "options.masks[", static_cast<std::int64_t>(i), "]"));
  }
}

}  // namespace heed::c
