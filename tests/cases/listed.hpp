// SPDX-License-Identifier: Apache-2.0
// Names as a sentence lists them.
#pragma once
#include <string>
#include <vector>

namespace heed::cases {

inline std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

}  // namespace heed::cases
