// SPDX-License-Identifier: Apache-2.0
// Reads a cache back. Nothing of the file is believed before all of it is checked, and nothing is allocated
// that neither the file's own bytes nor its pool account for.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cache/format.hpp"
#include "cache/state.hpp"
#include "files/array_size.hpp"
#include "heed/version.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {
using namespace cache;

namespace {

constexpr std::int64_t as_count(std::size_t size) { return static_cast<std::int64_t>(size); }

// Pages as the tables of a file use them.
struct PageUse {
  std::int64_t users = 0, tokens = 0;
  std::int64_t place = -1;  // in every table that has the page
};

struct Contents {
  std::vector<std::int64_t> lengths, tables, users;
  Array pages;
};

class ContentsCheck {
 public:
  ContentsCheck(const std::string& file, const CacheGeometry& geometry, const Contents& contents)
      : file_(file), geometry_(geometry), contents_(contents), uses_(contents.users.size()) {}

  void all() {
    check_pages();
    std::int64_t used = 0;
    for (std::size_t n = 0; n < contents_.lengths.size(); ++n) used += check_sequence(as_count(n), used);
    if (used != as_count(contents_.tables.size()))
      throw refuse("tables: ", as_count(contents_.tables.size()), " entries, the lengths need ", used);
    for (std::size_t i = 0; i < uses_.size(); ++i)
      if (uses_[i].users != contents_.users[i] || uses_[i].users == 0)
        throw refuse("users: ", contents_.users[i], " for page ", as_count(i), ", which stands in ",
                     uses_[i].users, " tables");
    if (geometry_.layout.is_quantized) check_scales();
  }

 private:
  template <class... Parts>
  Error refuse(const Parts&... parts) const {
    return refusal(Error::file, file_, ": ", parts...);
  }

  void check_pages() const {
    const std::int64_t count = contents_.pages.shape[0], bytes = contents_.pages.shape[1];
    if (count != as_count(contents_.users.size()))
      throw refuse("users: ", as_count(contents_.users.size()), " entries for ", count, " pages");
    if (bytes != geometry_.layout.page_bytes())
      throw refuse("pages: ", bytes, " bytes each, the layout needs ", geometry_.layout.page_bytes());
    if (count > *geometry_.config.pages)
      throw refuse("pages: ", count, ", the pool has ", *geometry_.config.pages);
  }

  // Returns the entries of the sequence's table, which begins at `begin`.
  std::int64_t check_sequence(std::int64_t number, std::int64_t begin) {
    const std::int64_t length = contents_.lengths[static_cast<std::size_t>(number)];
    if (length == -1) return 0;
    if (length < 0 || length > geometry_.config.capacity)
      throw refuse("lengths: ", length, " for sequence ", number, " is not in [0, ",
                   geometry_.config.capacity, "]");
    const std::int64_t pages = geometry_.pages_of(length),
                       remaining = as_count(contents_.tables.size()) - begin;
    if (pages > remaining)
      throw refuse("tables: ", remaining, " entries for sequence ", number, ", whose ", length,
                   " tokens need ", pages);
    bool may_be_released = geometry_.config.window.has_value();
    for (std::int64_t place = 0; place < pages; ++place) {
      const std::int64_t page = contents_.tables[static_cast<std::size_t>(begin + place)];
      const std::int64_t end = (place + 1) * geometry_.layout.page_size;
      if (page != -1) {
        use(number, page, place,
            std::min(geometry_.layout.page_size, length - end + geometry_.layout.page_size));
        may_be_released = may_be_released && place < geometry_.front_pages();
      } else if (!may_be_released || place < geometry_.front_pages() ||
                 end > length - geometry_.config.window->length) {
        throw refuse("tables: page ", place, " of sequence ", number,
                     " is missing, and no window released it");
      }
    }
    return pages;
  }

  void use(std::int64_t number, std::int64_t page, std::int64_t place, std::int64_t tokens) {
    if (page < 0 || page >= as_count(uses_.size()))
      throw refuse("tables: ", page, " in sequence ", number, " is not in [0, ", as_count(uses_.size()), ")");
    PageUse& use = uses_[static_cast<std::size_t>(page)];
    if (use.place != -1 && use.place != place)
      throw refuse("tables: page ", page, " is page ", use.place, " of one sequence and ", place,
                   " of sequence ", number);
    use.place = place;
    use.tokens = std::max(use.tokens, tokens);
    ++use.users;
  }

  void check_scales() const {
    const PageLayout& layout = geometry_.layout;
    for (std::size_t i = 0; i < uses_.size(); ++i)
      for (std::int64_t h = 0; h < layout.kv_heads; ++h)
        for (const std::int64_t at : {layout.key_scales_at(), layout.value_scales_at()}) {
          const auto* scales =
              contents_.pages.data.data() + as_count(i) * layout.page_bytes() + h * layout.head_bytes() + at;
          for (std::int64_t t = 0; t < uses_[i].tokens; ++t) {
            float scale = 0;
            std::memcpy(&scale, scales + t * 4, sizeof scale);
            if (!(scale >= 0) || std::isinf(scale))
              throw refuse("pages: a scale of ", scale, " in page ", as_count(i));
          }
        }
  }

  const std::string& file_;
  const CacheGeometry& geometry_;
  const Contents& contents_;
  std::vector<PageUse> uses_;
};

void fill_pool(State& state, const Contents& contents) {
  const std::int64_t page_bytes = state.layout.page_bytes();
  for (std::size_t i = 0; i < contents.users.size(); ++i) {
    unsigned char* page = state.pool.take();
    std::memcpy(page, contents.pages.data.data() + as_count(i) * page_bytes,
                static_cast<std::size_t>(page_bytes));
    for (std::int64_t user = 1; user < contents.users[i]; ++user) state.pool.share(page);
  }
}

void fill_sequences(State& state, const Contents& contents) {
  auto entry = contents.tables.begin();
  for (std::size_t n = 0; n < contents.lengths.size(); ++n) {
    CachedSequence& sequence = state.sequences.add();
    sequence.held_from = state.front_pages();
    sequence.is_released = contents.lengths[n] == -1;
    if (sequence.is_released) {
      ++state.released;
      continue;
    }
    sequence.length = contents.lengths[n];
    const std::int64_t pages = state.pages_of(sequence.length);
    sequence.table.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t place = 0; place < pages; ++place, ++entry) {
      sequence.table.push_back(*entry == -1 ? state.pool.zeros() : state.pool.at(*entry));
      if (*entry == -1) sequence.held_from = place + 1;
    }
  }
}

// Every refusal of the file's own format is one of this file.
Arrays read_arrays(const std::filesystem::path& path) {
  try {
    return read_safetensors(path);
  } catch (const Error& error) {
    throw Error(error.code == Error::capacity ? error.code : Error::file, error.what());
  }
}

std::unique_ptr<State> state_of(CacheFields fields) {
  const CacheGeometry geometry(take_config(fields));
  const Contents contents{fields.integers("lengths"), fields.integers("tables"), fields.integers("users"),
                          fields.bytes("pages")};
  fields.check_nothing_is_left();
  ContentsCheck(fields.file(), geometry, contents).all();
  auto state = std::make_unique<State>(geometry);
  fill_pool(*state, contents);
  fill_sequences(*state, contents);
  return state;
}

}  // namespace

KvCache KvCache::load(const std::filesystem::path& path) {
  return KvCache(state_of({path.string(), read_arrays(path)}));
}

KvCache KvCache::from_arrays(Arrays arrays) {
  for (const auto& [name, array] : arrays) files::check_contents(name, array);
  return KvCache(state_of({"arrays", std::move(arrays)}));
}

}  // namespace HEED_NAMESPACE
