// SPDX-License-Identifier: Apache-2.0
// Writes a cache: every page in use once, in the order in which the sequences first come to it.
#include <algorithm>
#include <vector>

#include "cache/format.hpp"
#include "cache/state.hpp"
#include "cache/store.hpp"

namespace heed {
namespace {

using State = KvCache::State;

struct Pages {
  std::vector<const unsigned char*> pages{};
  std::vector<std::int64_t> tokens{};  // how many of each page belong to a sequence
  std::vector<std::int64_t> users{};
};

// Adds a sequence's pages; returns its table in the numbers of the file, -1 for what the window released.
void add_table(const State& state, const Sequence& sequence, std::vector<std::int64_t>& number_in_file,
               Pages& pages, std::vector<std::int64_t>& tables) {
  const std::int64_t page_size = state.layout.page_size;
  std::int64_t begin = 0;
  for (const unsigned char* page : sequence.table) {
    const std::int64_t tokens = std::min(page_size, sequence.length - begin);
    begin += page_size;
    if (page == state.pool.zeros()) {
      tables.push_back(-1);
      continue;
    }
    std::int64_t& number = number_in_file[static_cast<std::size_t>(state.pool.number_of(page))];
    if (number < 0) {
      number = static_cast<std::int64_t>(pages.pages.size());
      pages.pages.push_back(page);
      pages.tokens.push_back(0);
      pages.users.push_back(0);
    }
    const auto i = static_cast<std::size_t>(number);
    pages.tokens[i] = std::max(pages.tokens[i], tokens);
    ++pages.users[i];
    tables.push_back(number);
  }
}

// What lies in a page and belongs to nobody is not written: it was somebody's once.
Array pages_array(const State& state, const Pages& pages) {
  const std::int64_t page_bytes = state.layout.page_bytes();
  const auto count = static_cast<std::int64_t>(pages.pages.size());
  Array array{Element::u8, {count, page_bytes}, {}};
  array.data.resize(static_cast<std::size_t>(count * page_bytes));
  auto* into = reinterpret_cast<unsigned char*>(array.data.data());
  for (std::size_t i = 0; i < pages.pages.size(); ++i, into += page_bytes)
    copy_tokens(state.layout, pages.pages[i], into, pages.tokens[i]);
  return array;
}

}  // namespace

void KvCache::save(const std::filesystem::path& path) const {
  const Reading reading(state_->use, "save");
  Pages pages;
  std::vector<std::int64_t> lengths, tables;
  std::vector<std::int64_t> number_in_file(static_cast<std::size_t>(state_->pool.ever_used()), -1);
  for (const Sequence& sequence : state_->sequences) {
    lengths.push_back(sequence.is_released ? -1 : sequence.length);
    add_table(*state_, sequence, number_in_file, pages, tables);
  }
  Arrays arrays;
  put_config(arrays, state_->config);
  arrays["lengths"] = integers_array(lengths);
  arrays["tables"] = integers_array(tables);
  arrays["users"] = integers_array(pages.users);
  arrays["pages"] = pages_array(*state_, pages);
  put_checksum(arrays);
  write_safetensors(path, arrays);
}

}  // namespace heed
