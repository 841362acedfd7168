// SPDX-License-Identifier: Apache-2.0
// Draws masks: all scores are equal, so a key's weight is positive exactly when the query (down) sees the key
// (across).
#include <array>
#include <cstdint>
#include <cstdio>
#include <heed/heed.hpp>
#include <utility>
#include <vector>

namespace {

void draw(const char* title, std::vector<heed::Mask> masks, std::int64_t queries = 6, std::int64_t keys = 6) {
  const heed::Shape q{.length = queries, .dim = 1}, kv{.length = keys, .dim = 1},
      table{.length = queries, .dim = keys};
  const std::vector<float> zeros(static_cast<std::size_t>(queries + keys));
  std::vector<float> out(static_cast<std::size_t>(queries)),
      weights(static_cast<std::size_t>(queries * keys));
  heed::attention({.q = {zeros, q}, .k = {zeros, kv}, .v = {zeros, kv}},
                  {.out = {out, q}, .weights = {weights, table}}, {.masks = std::move(masks)});
  std::printf("%s\n", title);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const bool row_ends = (i + 1) % static_cast<std::size_t>(keys) == 0;
    std::printf("%s%s", weights[i] > 0 ? " #" : " .", row_ends ? "\n" : "");
  }
  std::printf("\n");
}

}  // namespace

int main() {
  using heed::Align;
  draw("Causal{}", {heed::Causal{}});
  draw("Window{.left = 2, .right = 1}", {heed::Window{.left = 2, .right = 1}});
  draw("Causal{} and Window::from_total(3): masks intersect", {heed::Causal{}, heed::Window::from_total(3)});
  draw("3 queries, 6 keys: Causal{Align::ends}", {heed::Causal{Align::ends}}, 3, 6);
  draw("3 queries, 6 keys: Causal{Align::starts}", {heed::Causal{Align::starts}}, 3, 6);

  const std::array<std::int32_t, 1> length{4};
  draw("KeyLengths{{4}}", {heed::KeyLengths{length}});

  const std::array<std::int64_t, 6> tokens{12, 7, 0, 5, 0, 0};  // 0 is padding
  const heed::HideMatrix hidden = combine(heed::padding_mask(tokens, 1), heed::look_ahead_mask(6));
  draw("padding_mask and look_ahead_mask of the tokens 12 7 0 5 0 0", {heed::Hide(hidden)});

  try {
    draw("3 queries, 6 keys: Causal{}", {heed::Causal{}}, 3, 6);
  } catch (const heed::Error& error) {
    std::printf("3 queries, 6 keys, Causal{} is refused:\n  %s\n", error.what());
    return 0;
  }
  return 1;
}
