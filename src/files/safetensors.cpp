// SPDX-License-Identifier: Apache-2.0
// safetensors files: eight bytes that give the length of a JSON header, the header, and the arrays' bytes.
#include <cstdint>
#include <new>
#include <string>

#include "files/array_size.hpp"
#include "files/atomic_file.hpp"
#include "files/input_file.hpp"
#include "files/json_string.hpp"
#include "files/safetensors_header.hpp"
#include "heed/error.hpp"
#include "heed/files.hpp"

namespace heed {
namespace {

using files::InputFile;
using files::Layout;
using files::longest_safetensors_header;

Layout read_layout(InputFile& file) {
  std::uint64_t length = 0;
  if (file.size() < static_cast<std::int64_t>(sizeof length)) {
    throw Error(Error::file, file.name() + ": " + std::to_string(file.size()) +
                                 " bytes are too few for a safetensors file");
  }
  file.read(&length, sizeof length);
  const std::int64_t after_length = file.size() - static_cast<std::int64_t>(sizeof length);
  if (length > std::uint64_t{longest_safetensors_header}) {
    throw Error(Error::file, file.name() + ": header of " + std::to_string(length) + " bytes, more than " +
                                 std::to_string(longest_safetensors_header));
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > after_length) {
    throw Error(Error::file, file.name() + ": header of " + std::to_string(length) + " bytes, the file has " +
                                 std::to_string(after_length));
  }
  std::string header(static_cast<std::size_t>(header_bytes), '\0');
  file.read(header.data(), header.size());
  return files::read_safetensors_header(file.name(), header, after_length - header_bytes);
}

}  // namespace

// The header's text is gone before the first array is allocated, and each array is read in place: at no time
// is there more than the file's bytes, once, and the tables made from its header.
Arrays read_safetensors(const std::filesystem::path& path, Metadata* metadata) {
  InputFile file(path);
  try {
    Layout layout = read_layout(file);
    for (const files::Placement& placement : layout.placements) {
      Array& array = placement.array->second;
      array.data.resize(static_cast<std::size_t>(placement.end - placement.begin));
      file.read(array.data.data(), array.data.size());
      files::check_contents(file.name() + ": tensor " + files::quote_briefly(placement.array->first), array);
    }
    if (metadata != nullptr) *metadata = std::move(layout.metadata);
    return std::move(layout.arrays);
  } catch (const std::bad_alloc&) {
    throw Error(Error::capacity,
                file.name() + ": no memory for a file of " + std::to_string(file.size()) + " bytes");
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

}  // namespace heed
