// SPDX-License-Identifier: Apache-2.0
// See saved_run.hpp.
#include "bench/saved_run.hpp"

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "heed/error.hpp"

namespace heed::tool {

std::optional<double> SavedRun::seconds_of(const std::string& name) const {
  const auto found = median_seconds.find(name);
  if (found == median_seconds.end()) return {};
  return found->second;
}

SavedRun read_saved_run(const std::string& flag, const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(Error::file, fmt::format("{}: '{}' cannot be read", flag, path));
  try {
    const nlohmann::json object = nlohmann::json::parse(file);
    const nlohmann::json& machine = object.at("machine");
    SavedRun run{.path = path,
                 .machine = machine.at("name"),
                 .date = object.at("date"),
                 .version = object.at("versions").at("heed"),
                 .threads = machine.at("threads")};
    for (const nlohmann::json& record : object.at("cases"))
      if (record.at("by") == "heed" && record.contains("median_seconds"))
        run.median_seconds[record.at("name")] = record.at("median_seconds");
    return run;
  } catch (const nlohmann::json::exception&) {
    throw Error(Error::file, fmt::format("{}: '{}' is not what heed bench --json prints", flag, path));
  }
}

}  // namespace heed::tool
