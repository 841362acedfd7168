// SPDX-License-Identifier: Apache-2.0
// safetensors files: the JSON object that begins one, and the arrays behind it. The grammar is fixed, two
// objects deep, so nothing here recurses.
#include "files/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "files/array_size.hpp"
#include "files/atomic_file.hpp"
#include "files/file_kind.hpp"
#include "files/header_cursor.hpp"
#include "files/json.hpp"
#include "heed/error.hpp"
#include "heed/files.hpp"

namespace heed::files {
namespace {

// The format's names are ours in capitals.
std::string dtype_text(Element element) {
  std::string text = name_of(element);
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::optional<Element> find_dtype(const std::string& text) {
  for (int i = 0; i <= static_cast<int>(Element::f64); ++i) {
    if (text == dtype_text(static_cast<Element>(i))) return static_cast<Element>(i);
  }
  return std::nullopt;
}

std::string subject_of(const std::string& file, const std::string& name) {
  return file + ": tensor " + quote_briefly(name);
}

std::string metadata_subject(const std::string& file, const std::string& key) {
  return file + ": metadata key " + quote_briefly(key);
}

std::vector<std::int64_t> read_integers(HeaderCursor& cursor) {
  std::vector<std::int64_t> integers;
  cursor.expect('[');
  if (cursor.accept(']')) return integers;
  // One allocation of the right size: growing by doubling would hold a long list three times over.
  const std::string_view list = cursor.rest().substr(0, cursor.rest().find(']'));
  integers.reserve(static_cast<std::size_t>(std::count(list.begin(), list.end(), ',')) + 1);
  do {
    integers.push_back(cursor.unsigned_integer());
  } while (cursor.another_before(']'));
  return integers;
}

Metadata read_metadata(HeaderCursor& cursor) {
  Metadata metadata;
  cursor.expect('{');
  if (cursor.accept('}')) return metadata;
  do {
    const auto [entry, is_new] = metadata.try_emplace(read_json_string(cursor));
    if (!is_new)
      throw Error(Error::file, metadata_subject(cursor.subject(), entry->first) + " appears twice");
    cursor.expect(':');
    entry->second = read_json_string(cursor);
  } while (cursor.another_before('}'));
  return metadata;
}

// What one tensor's object says, each part at most once.
struct Entry {
  std::optional<std::string> dtype{};
  std::optional<std::vector<std::int64_t>> shape{}, data_offsets{};
};

Entry read_entry(HeaderCursor& cursor, const std::string& subject) {
  Entry entry;
  cursor.expect('{');
  if (cursor.accept('}')) return entry;
  do {
    const std::string key = read_json_string(cursor);
    const std::string what = subject + ": key " + quote_briefly(key);
    cursor.expect(':');
    if (key == "dtype") {
      set_once(entry.dtype, read_json_string(cursor), what);
    } else if (key == "shape") {
      set_once(entry.shape, read_integers(cursor), what);
    } else if (key == "data_offsets") {
      set_once(entry.data_offsets, read_integers(cursor), what);
    } else {
      throw Error(Error::file, what + " is not dtype, shape or data_offsets");
    }
  } while (cursor.another_before('}'));
  return entry;
}

Placement read_tensor(HeaderCursor& cursor, Arrays::value_type& named, std::int64_t data_bytes) {
  const std::string subject = subject_of(cursor.subject(), named.first);
  Entry entry = read_entry(cursor, subject);
  if (!entry.dtype) throw Error(Error::file, subject + " has no dtype");
  if (!entry.shape) throw Error(Error::file, subject + " has no shape");
  if (!entry.data_offsets) throw Error(Error::file, subject + " has no data_offsets");
  if (entry.data_offsets->size() != 2) {
    throw Error(Error::file, subject + ": data_offsets has " + std::to_string(entry.data_offsets->size()) +
                                 " numbers, not 2");
  }
  const auto element = find_dtype(*entry.dtype);
  if (!element) {
    throw Error(Error::dtype, subject + ": dtype " + quote_briefly(*entry.dtype) + " is not one heed reads");
  }
  named.second.element = *element;
  named.second.shape = std::move(*entry.shape);

  const std::int64_t begin = (*entry.data_offsets)[0], end = (*entry.data_offsets)[1];
  const std::int64_t needed = byte_count(subject, *element, named.second.shape);
  if (end < begin) {
    throw Error(Error::file, subject + " ends at byte " + std::to_string(end) + ", before its start at " +
                                 std::to_string(begin));
  }
  if (end > data_bytes) {
    throw Error(Error::file,
                subject + " ends at byte " + std::to_string(end) + " of " + std::to_string(data_bytes));
  }
  if (end - begin != needed) {
    throw Error(Error::file, subject + ": " + name_of(*element) + " " + shape_text(named.second.shape) +
                                 " needs " + std::to_string(needed) + " bytes, data_offsets give " +
                                 std::to_string(end - begin));
  }
  return {&named, begin, end};
}

// Sorts the placements and checks that each begins where the one before it ended.
void check_coverage(const std::string& file, std::vector<Placement>& placements, std::int64_t data_bytes) {
  std::sort(placements.begin(), placements.end(), [](const Placement& a, const Placement& b) {
    return std::tie(a.begin, a.end, a.array->first) < std::tie(b.begin, b.end, b.array->first);
  });
  const auto hole = [&](std::int64_t from, std::int64_t to) {
    return Error(Error::file, file + ": data bytes " + std::to_string(from) + " to " + std::to_string(to) +
                                  " belong to no tensor");
  };
  std::int64_t covered = 0;
  const Placement* last = nullptr;
  for (const Placement& placement : placements) {
    if (placement.begin > covered) throw hole(covered, placement.begin);
    if (placement.begin < covered) {
      throw Error(Error::file, subject_of(file, placement.array->first) + " starts at byte " +
                                   std::to_string(placement.begin) + ", inside tensor " +
                                   quote_briefly(last->array->first) + ", which ends at " +
                                   std::to_string(covered));
    }
    covered = placement.end;
    last = &placement;
  }
  if (covered < data_bytes) throw hole(covered, data_bytes);
}

std::string metadata_text(const std::string& file, const Metadata& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key)) throw Error(Error::file, metadata_subject(file, key) + " is not UTF-8");
    if (!is_utf8(value)) throw Error(Error::file, metadata_subject(file, key) + ": its value is not UTF-8");
    if (!text.empty()) text += ',';
    text += quote_json(key) + ":" + quote_json(value);
  }
  return quote_json(metadata_key) + ":{" + text + "}";
}

}  // namespace

Layout read_safetensors_header(const std::string& file, std::string_view header, std::int64_t data_bytes) {
  HeaderCursor cursor(file, header);
  if (!header.starts_with('{')) throw cursor.expected("'{'");  // the format allows no space before it
  Layout layout;
  bool has_metadata = false;
  cursor.expect('{');
  if (!cursor.accept('}')) {
    do {
      std::string name = read_json_string(cursor);
      cursor.expect(':');
      if (name == metadata_key) {
        if (has_metadata) throw Error(Error::file, file + ": key \"__metadata__\" appears twice");
        has_metadata = true;
        layout.metadata = read_metadata(cursor);
        continue;
      }
      const auto [named, is_new] = layout.arrays.try_emplace(std::move(name));
      if (!is_new) throw Error(Error::file, subject_of(file, named->first) + " appears twice");
      layout.placements.push_back(read_tensor(cursor, *named, data_bytes));
    } while (cursor.another_before('}'));
  }
  cursor.expect_only_spaces();
  check_coverage(file, layout.placements, data_bytes);
  return layout;
}

SafetensorsHeader make_safetensors_header(const std::string& file, const Arrays& arrays,
                                          const Metadata& metadata) {
  std::vector<Arrays::const_pointer> order;
  for (const auto& named : arrays) {
    const std::string subject = subject_of(file, named.first);
    if (named.first == metadata_key) throw Error(Error::file, subject + ": the format reserves this name");
    if (!is_utf8(named.first)) throw Error(Error::file, subject + ": its name is not UTF-8");
    check_contents(subject, named.second);
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), [](Arrays::const_pointer a, Arrays::const_pointer b) {
    return bytes_of(a->second.element) > bytes_of(b->second.element);
  });

  SafetensorsHeader header{"{", {}};
  if (!metadata.empty()) header.text += metadata_text(file, metadata);
  std::size_t offset = 0;
  for (const auto* named : order) {
    const Array& array = named->second;
    if (header.text.size() > 1) header.text += ',';
    header.text += quote_json(named->first) + ":{\"dtype\":\"" + dtype_text(array.element) + "\",\"shape\":[";
    for (std::size_t axis = 0; axis < array.shape.size(); ++axis) {
      if (axis > 0) header.text += ',';
      header.text += std::to_string(array.shape[axis]);
    }
    header.text += "],\"data_offsets\":[" + std::to_string(offset) + ",";
    offset += array.data.size();
    header.text += std::to_string(offset) + "]}";
    header.order.push_back(&array);
  }
  header.text += '}';
  header.text.resize((header.text.size() + 7) / 8 * 8, ' ');
  if (header.text.size() > std::size_t{longest_safetensors_header}) {
    throw Error(Error::file, file + ": needs a header of " + std::to_string(header.text.size()) +
                                 " bytes, more than " + std::to_string(longest_safetensors_header));
  }
  return header;
}

namespace {

constexpr const char* wanted = "a safetensors file";

std::string read_header(const InputFile& file) {
  std::uint64_t length = 0;
  if (file.size() < static_cast<std::int64_t>(sizeof length))
    throw not_a(wanted, file, std::to_string(file.size()) + " bytes are too few for a safetensors file");
  file.read_at(0, &length, sizeof length);
  const std::int64_t after_length = file.size() - static_cast<std::int64_t>(sizeof length);
  const bool is_too_long = length > std::uint64_t{longest_safetensors_header};
  if (is_too_long && after_length > 0) {
    char first = 0;
    file.read_at(sizeof length, &first, 1);
    if (first != '{') throw not_a(wanted, file, "does not begin as a safetensors file does");
  }
  const std::string header_of = "header of " + std::to_string(length) + " bytes, ";
  if (is_too_long)
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

// safetensors files: eight bytes that give the length of a JSON header, the header, and the arrays' bytes.

namespace HEED_NAMESPACE {

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

}  // namespace HEED_NAMESPACE
