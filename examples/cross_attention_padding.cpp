// SPDX-License-Identifier: Apache-2.0
// Two sentences of different lengths in one batch: queries from a decoder attend to an encoder's output, and
// the padding after the shorter sentence is never read, whatever lies there.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <heed/heed.hpp>
#include <limits>
#include <vector>

int main() {
  constexpr heed::Shape decoder{.batch = 2, .heads = 1, .length = 2, .dim = 4};
  constexpr heed::Shape encoder{.batch = 2, .heads = 1, .length = 5, .dim = 4};
  constexpr heed::Shape table{.batch = 2, .heads = 1, .length = 2, .dim = 5};
  constexpr std::array<std::int32_t, 2> lengths{5, 3};

  std::vector<float> q(decoder.elements()), kv(encoder.elements()), out(q.size()), weights(table.elements());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < kv.size(); ++i) kv[i] = std::cos(static_cast<float>(i));
  for (std::size_t i = 8 * 4; i < kv.size(); ++i) kv[i] = std::numeric_limits<float>::quiet_NaN();

  const heed::View context{kv, encoder};
  heed::attention({.q = {q, decoder}, .k = context, .v = context},
                  {.out = {out, decoder}, .weights = {weights, table}},
                  {.masks = {heed::KeyLengths{lengths}}});

  bool finite = true;
  for (std::size_t row = 0; row < 4; ++row) {
    std::printf("sentence %zu (%d tokens), query %zu: weights", row / 2, lengths[row / 2], row % 2);
    for (std::size_t key = 0; key < 5; ++key) std::printf(" %.3f", weights[row * 5 + key]);
    std::printf("\n");
    for (std::size_t d = 0; d < 4; ++d) finite = finite && std::isfinite(out[row * 4 + d]);
  }
  std::printf("NaN lies in the padding; the result is %s\n", finite ? "finite" : "NOT FINITE");
  return finite ? 0 : 1;
}
