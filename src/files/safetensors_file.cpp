// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_file.hpp"

#include <algorithm>
#include <utility>

#include "files/array_size.hpp"
#include "files/file_kind.hpp"
#include "files/json_string.hpp"

namespace heed::files {
namespace {

constexpr const char* wanted = "a safetensors file";

std::string read_header(const InputFile& file) {
  std::uint64_t length = 0;
  if (file.size() < static_cast<std::int64_t>(sizeof length))
    throw not_a(wanted, file, std::to_string(file.size()) + " bytes are too few for a safetensors file");
  file.read_at(0, &length, sizeof length);
  const std::int64_t after_length = file.size() - static_cast<std::int64_t>(sizeof length);
  const std::string header_of = "header of " + std::to_string(length) + " bytes, ";
  if (length > std::uint64_t{longest_safetensors_header})
    throw not_a(wanted, file, header_of + "more than " + std::to_string(longest_safetensors_header));
  if (static_cast<std::int64_t>(length) > after_length)
    throw not_a(wanted, file, header_of + "the file has " + std::to_string(after_length));
  std::string header(static_cast<std::size_t>(length), '\0');
  file.read_at(sizeof length, header.data(), header.size());
  return header;
}

}  // namespace

// The header's text is gone before the first array is allocated.
SafetensorsFile::SafetensorsFile(InputFile file) : file_(std::move(file)) {
  const std::string header = read_header(file_);
  data_begin_ = static_cast<std::int64_t>(sizeof(std::uint64_t) + header.size());
  layout_ = read_safetensors_header(file_.name(), header, file_.size() - data_begin_);
}

void SafetensorsFile::read(const Placement& placement) const {
  Array& array = placement.array->second;
  array.data.resize(static_cast<std::size_t>(placement.end - placement.begin));
  file_.read_at(data_begin_ + placement.begin, array.data.data(), array.data.size());
  check_contents(file_.name() + ": tensor " + quote_briefly(placement.array->first), array);
}

Array SafetensorsFile::read(const std::string& tensor) {
  read(*std::ranges::find(layout_.placements, tensor, [](const Placement& p) { return p.array->first; }));
  Array& array = layout_.arrays.at(tensor);
  return {array.element, array.shape, std::exchange(array.data, {})};
}

Array SafetensorsFile::read_rows(const std::string& tensor, std::int64_t first, std::int64_t count) const {
  const Placement& placement =
      *std::ranges::find(layout_.placements, tensor, [](const Placement& p) { return p.array->first; });
  const Array& whole = placement.array->second;
  const std::int64_t row = (placement.end - placement.begin) / whole.shape[0];
  Array rows{whole.element, whole.shape, std::vector<std::byte>(static_cast<std::size_t>(count * row))};
  rows.shape[0] = count;
  file_.read_at(data_begin_ + placement.begin + first * row, rows.data.data(), rows.data.size());
  check_contents(file_.name() + ": tensor " + quote_briefly(tensor), rows);
  return rows;
}

}  // namespace heed::files
