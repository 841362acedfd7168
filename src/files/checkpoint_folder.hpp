// SPDX-License-Identifier: Apache-2.0
// The arrays of a folder: in model.safetensors, or in the shards that model.safetensors.index.json names.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "files/safetensors.hpp"

namespace heed::files {

class CheckpointFolder {
 public:
  // Reads which arrays there are. Refuses an index whose shards are not files of this folder.
  explicit CheckpointFolder(const std::filesystem::path&);

  std::vector<std::string> names() const;
  bool has(const std::string& tensor) const { return shard_of_.contains(tensor); }
  // One that is there; of its file only the header and its own bytes are read.
  Array read(const std::string& tensor);

 private:
  void read_index(const std::filesystem::path&);

  std::filesystem::path folder_;
  std::map<std::string, std::string> shard_of_{};  // by name; the shard's file name
  std::string opened_name_{};
  std::optional<SafetensorsFile> opened_{};  // the shard read last
};

}  // namespace heed::files
