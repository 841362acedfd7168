// SPDX-License-Identifier: Apache-2.0
// See token_list.hpp.
#include "token_list.hpp"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "heed/error.hpp"

namespace heed::tool {

namespace {

constexpr std::uintmax_t max_bytes = 256U << 20;

// heed's own check is not in its API; JSON takes nothing else.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> read_token_list(const std::string& flag, const std::string& path) {
  if (path.empty()) return {};
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem))
    throw Error(Error::file, fmt::format("{}: '{}' is no file that can be read", flag, path));
  if (const auto bytes = std::filesystem::file_size(path, problem); problem || bytes > max_bytes)
    throw Error(Error::file, fmt::format("{}: '{}' is larger than {} bytes", flag, path, max_bytes));
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!is_utf8(line))
      throw Error(Error::value,
                  fmt::format("{}: line {} of '{}' is not UTF-8", flag, words.size() + 1, path));
    words.push_back(std::move(line));
  }
  if (file.bad() || !file.eof()) throw Error(Error::file, fmt::format("{}: '{}' cannot be read", flag, path));
  if (words.empty()) throw Error(Error::file, fmt::format("{}: '{}' has no lines", flag, path));
  return words;
}

}  // namespace heed::tool
