// SPDX-License-Identifier: Apache-2.0
#include "files/checkpoint_folder.hpp"

#include <algorithm>
#include <new>

#include "files/json.hpp"

namespace heed::files {
namespace {

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr std::int64_t longest_index = longest_safetensors_header;

// A name in the folder itself: an index from outside must not name files elsewhere.
void check_shard(const std::string& index, const std::string& tensor, const std::string& shard) {
  const bool is_plain = !shard.empty() && shard != "." && shard != ".." &&
                        shard.find_first_of(std::string_view("/\\\0", 3)) == shard.npos;
  if (!is_plain)
    throw Error(Error::file, index + ": weight_map: tensor " + quote_briefly(tensor) + " is in " +
                                 quote_briefly(shard) + ", which is not the name of a file in the folder");
}

// What else may lie where the weights were expected; nothing where the folder cannot be listed.
std::string other_weights(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator at(folder, error); !error && at != end; at.increment(error)) {
    const std::string extension = at->path().extension().string();
    for (const char* known : {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".npz"})
      if (extension == known) found.push_back(at->path().filename().string());
  }
  if (found.empty()) return "";
  return "; it has " + quote_briefly(*std::ranges::min_element(found)) +
         (found.size() > 1 ? " and " + std::to_string(found.size() - 1) + " more" : "");
}

std::map<std::string, std::string> read_weight_map(HeaderCursor& cursor) {
  std::map<std::string, std::string> shards;
  cursor.expect('{');
  if (cursor.accept('}')) return shards;
  do {
    const auto [entry, is_new] = shards.try_emplace(read_json_string(cursor));
    if (!is_new) throw cursor.error("tensor " + quote_briefly(entry->first) + " appears twice");
    cursor.expect(':');
    entry->second = read_json_string(cursor);
    check_shard(cursor.subject(), entry->first, entry->second);
  } while (cursor.another_before('}'));
  return shards;
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / single_file, error)) {
    opened_name_ = single_file;
    opened_.emplace(InputFile(folder / single_file));
    for (const auto& named : opened_->layout().arrays) shard_of_.emplace(named.first, single_file);
  } else if (std::filesystem::exists(folder / index_file, error)) {
    read_index(folder / index_file);
  } else {
    throw Error(Error::file, folder.string() + ": has neither " + single_file + " nor " + index_file +
                                 other_weights(folder));
  }
}

// Everything but the map of weights is passed over without being kept.
void CheckpointFolder::read_index(const std::filesystem::path& path) {
  const std::string name = path.string(), text = read_text(path, longest_index);
  HeaderCursor cursor(name, text, "byte ");
  std::optional<std::map<std::string, std::string>> weight_map;
  cursor.expect('{');
  if (!cursor.accept('}')) {
    do {
      const std::string key = read_json_string(cursor);
      cursor.expect(':');
      if (key == "weight_map")
        set_once(weight_map, read_weight_map(cursor), name + ": key \"weight_map\"");
      else
        skip_json(cursor, 1);
    } while (cursor.another_before('}'));
  }
  cursor.expect_end();
  if (!weight_map) throw Error(Error::file, name + ": has no weight_map");
  shard_of_ = std::move(*weight_map);
}

std::vector<std::string> CheckpointFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : shard_of_) names.push_back(entry.first);
  return names;
}

Array CheckpointFolder::read(const std::string& tensor) {
  const std::string& shard = shard_of_.at(tensor);
  const std::filesystem::path path = folder_ / shard;
  try {
    if (!opened_ || opened_name_ != shard) {
      opened_.emplace(InputFile(path));
      opened_name_ = shard;
    }
    if (!opened_->has(tensor))
      throw Error(Error::file, path.string() + ": has no tensor " + quote_briefly(tensor) + ", which " +
                                   index_file + " says is there");
    return opened_->read(tensor);
  } catch (const std::bad_alloc&) {
    throw Error(Error::capacity, path.string() + ": no memory for tensor " + quote_briefly(tensor));
  }
}

}  // namespace heed::files
