// SPDX-License-Identifier: Apache-2.0
// safetensors files: eight bytes that give the length of a JSON header, the header, and the arrays' bytes.
#include <cstdint>
#include <new>
#include <string>

#include "files/atomic_file.hpp"
#include "files/safetensors_file.hpp"
#include "files/safetensors_header.hpp"
#include "heed/error.hpp"
#include "heed/files.hpp"

namespace heed::inline v0_2 {

// Each array is read in place: at no time is there more than the file's bytes, once, and the tables made from
// its header.
Arrays read_safetensors(const std::filesystem::path& path, Metadata* metadata) {
  files::InputFile opened(path);
  const std::int64_t size = opened.size();
  try {
    files::SafetensorsFile file(std::move(opened));
    files::Layout& layout = file.layout();
    for (const files::Placement& placement : layout.placements) file.read(placement);
    if (metadata != nullptr) *metadata = std::move(layout.metadata);
    return std::move(layout.arrays);
  } catch (const std::bad_alloc&) {
    throw Error(Error::capacity,
                path.string() + ": no memory for a file of " + std::to_string(size) + " bytes");
  }
}

void write_safetensors(const std::filesystem::path& path, const Arrays& arrays, const Metadata& metadata) {
  const files::SafetensorsHeader header = files::make_safetensors_header(path.string(), arrays, metadata);
  const auto length = std::uint64_t{header.text.size()};
  files::AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(header.text.data(), header.text.size());
  for (const Array* array : header.order) file.write(array->data.data(), array->data.size());
  file.commit();
}

}  // namespace heed::inline v0_2
