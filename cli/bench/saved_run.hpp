// SPDX-License-Identifier: Apache-2.0
// What `heed bench --json` printed another day, to compare with.
#pragma once
#include <map>
#include <optional>
#include <string>

namespace heed::tool {

struct SavedRun {
  std::string path{}, machine{}, date{}, version{};
  int threads = 0;
  std::map<std::string, double> median_seconds{};  // of each case whose result was right, by name

  std::optional<double> seconds_of(const std::string& name) const;
};
SavedRun read_saved_run(const std::string& flag, const std::string& path);

}  // namespace heed::tool
