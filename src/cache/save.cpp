// SPDX-License-Identifier: Apache-2.0
// Writes a cache: every page in use once, in the order in which the sequences first come to it.
#include <algorithm>
#include <vector>

#include "cache/format.hpp"
#include "cache/reading.hpp"
#include "cache/state.hpp"
#include "cache/store.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {
using namespace cache;

namespace {

// Tables in the numbers of the file.
struct Numbered {
  explicit Numbered(const State& s) : state(s) {
    const std::lock_guard guard(s.lock);
    number_in_file.resize(static_cast<std::size_t>(s.pool.ever_used()), -1);
  }

  const State& state;
  std::vector<std::int64_t> number_in_file{};  // of every page of the pool, or -1
  std::vector<std::int64_t> tables{};          // one after the other; -1 for what a window released
  std::vector<const unsigned char*> pages{};
  std::vector<std::int64_t> tokens{};  // how many of each page belong to a sequence
  std::vector<std::int64_t> users{};

  void add(const CachedSequence& sequence) {
    std::int64_t remaining = sequence.length;
    for (const unsigned char* page : sequence.table) {
      const std::int64_t number = page == state.pool.zeros() ? -1 : number_of(page);
      tables.push_back(number);
      if (number >= 0) {
        const auto i = static_cast<std::size_t>(number);
        tokens[i] = std::max(tokens[i], std::min(remaining, state.layout.page_size));
        ++users[i];
      }
      remaining -= state.layout.page_size;
    }
  }

  std::int64_t number_of(const unsigned char* page) {
    std::int64_t& number = number_in_file[static_cast<std::size_t>(state.pool.number_of(page))];
    if (number < 0) {
      number = static_cast<std::int64_t>(pages.size());
      pages.push_back(page);
      tokens.push_back(0);
      users.push_back(0);
    }
    return number;
  }
};

// What lies in a page and belongs to nobody is not written: it was somebody's once.
Array pages_array(const Numbered& numbered) {
  const std::int64_t page_bytes = numbered.state.layout.page_bytes();
  const auto count = static_cast<std::int64_t>(numbered.pages.size());
  Array array{Element::u8, {count, page_bytes}, {}};
  array.data.resize(static_cast<std::size_t>(count * page_bytes));
  auto* into = reinterpret_cast<unsigned char*>(array.data.data());
  const DevicePages* device = numbered.state.pool.on_device();
  std::vector<unsigned char> brought(static_cast<std::size_t>(device ? page_bytes : 0));
  for (std::size_t i = 0; i < numbered.pages.size(); ++i, into += page_bytes) {
    if (device) device->bring(numbered.pages[i], brought.data(), page_bytes);
    copy_tokens(numbered.state.layout, device ? brought.data() : numbered.pages[i], into, numbered.tokens[i]);
  }
  return array;
}

}  // namespace

Arrays KvCache::to_arrays() const {
  const CacheReading reading = CacheReading::of_all(*this, "save");
  Numbered numbered(*state_);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(reading.sequences()), -1);
  for (const std::int64_t n : reading.numbers()) {
    lengths[static_cast<std::size_t>(n)] = state_->sequences[n].length;
    numbered.add(state_->sequences[n]);
  }
  Arrays arrays;
  put_config(arrays, state_->config);
  arrays["lengths"] = integers_array(lengths);
  arrays["tables"] = integers_array(numbered.tables);
  arrays["users"] = integers_array(numbered.users);
  arrays["pages"] = pages_array(numbered);
  put_checksum(arrays);
  return arrays;
}

void KvCache::save(const std::filesystem::path& path) const { write_safetensors(path, to_arrays()); }

}  // namespace HEED_NAMESPACE
