// SPDX-License-Identifier: Apache-2.0
// What a program was compiled against that has the headers of 0.1: structs of other sizes under the same
// names.
#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace heed {

struct Error : std::runtime_error {
  int code = 0;
  explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

struct View {
  const void* data = nullptr;
  std::int64_t shape[4]{}, stride[4]{};
};

struct Inputs {
  View q, k, v;
};
struct Outputs {
  View out;
  std::optional<View> weights;
};
struct Options {
  std::vector<int> masks;
};

void attention(const Inputs&, const Outputs&, const Options& = {});

}  // namespace heed
