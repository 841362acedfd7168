// SPDX-License-Identifier: Apache-2.0
// A cache without pages in memory: vectors of tokens, and page numbers that are only counted. The real one
// must agree with it after every call.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "tokens.hpp"

namespace heed::test {

inline float rounded(CacheType type, float x) {
  if (type == CacheType::f16) return to_float(from_float<f16>(x));
  if (type == CacheType::bf16) return to_float(from_float<bf16>(x));
  return x;
}

// A row through the cache's type and back.
inline std::vector<float> through(CacheType type, std::vector<float> row) {
  float largest = 0;
  for (const float x : row) largest = std::max(largest, std::fabs(x));
  const float scale = largest / 127;
  for (float& x : row) {
    if (type != CacheType::int8) x = rounded(type, x);
    if (type == CacheType::int8 && scale > 0) x = static_cast<float>(std::lrint(x / scale)) * scale;
  }
  return row;
}

struct Model {
  struct Token {
    std::vector<std::vector<float>> k, v;  // per head
  };
  struct Sequence {
    std::vector<Token> tokens{};
    std::vector<int> pages{};    // -1: released by the window
    std::int64_t kept_from = 0;  // the first token after the front's pages that is there
    bool is_released = false;
  };

  KvCacheConfig config;
  std::vector<Sequence> sequences{};
  int next_page = 0;

  explicit Model(const KvCacheConfig& complete) : config(complete) {
    sequences.resize(static_cast<std::size_t>(config.batch));
    for (Sequence& s : sequences) s.kept_from = front_end();
  }

  std::int64_t pages_for(std::size_t tokens) const {
    return (static_cast<std::int64_t>(tokens) + *config.page_size - 1) / *config.page_size;
  }
  std::int64_t front_end() const {
    return config.window ? pages_for(static_cast<std::size_t>(config.window->front)) * *config.page_size : 0;
  }
  std::int64_t pages_in_use() const {
    std::set<int> pages;
    for (const Sequence& s : sequences) pages.insert(s.pages.begin(), s.pages.end());
    pages.erase(-1);
    return static_cast<std::int64_t>(pages.size());
  }
  bool is_shared(int page) const {
    return std::ranges::count_if(
               sequences, [&](const Sequence& s) { return std::ranges::count(s.pages, page) > 0; }) > 1;
  }
  bool is_in_use(std::int64_t n) const {
    return n >= 0 && n < static_cast<std::int64_t>(sequences.size()) &&
           !sequences[static_cast<std::size_t>(n)].is_released;
  }

  std::vector<float> key_to_store(std::vector<float> row, std::int64_t position) const {
    if (!config.rotary) return through(config.type, row);
    if (config.rotary->when == CacheRotary::When::append) return through(config.type, turned(row, position));
    row = turned(through(config.type, row), position);
    for (float& x : row) x = rounded(config.type, x);
    return row;
  }
  std::vector<float> turned(std::vector<float> row, std::int64_t position) const {
    const Shape shape{1, 1, 1, static_cast<std::int64_t>(row.size())};
    const std::int64_t positions[] = {position};
    rotate({row, shape}, positions, config.rotary->rotary);
    return row;
  }

  void let_go(Sequence& s) const {
    if (!config.window) return;
    const std::int64_t unseen = static_cast<std::int64_t>(s.tokens.size()) - config.window->length;
    while (s.kept_from + *config.page_size <= unseen) {
      s.pages[static_cast<std::size_t>(s.kept_from / *config.page_size)] = -1;
      s.kept_from += *config.page_size;
    }
  }

  // The model after the call, or nothing when it must be refused.
  std::optional<Model> appended(std::int64_t first, const Tokens& k, const Tokens& v,
                                const std::vector<std::int64_t>& counts) const {
    Model after = *this;
    for (std::size_t b = 0; b < counts.size(); ++b) {
      const std::size_t n = static_cast<std::size_t>(first) + b;
      const auto count = static_cast<std::size_t>(counts[b]);
      if (count == 0) continue;
      if (sequences[n].is_released) return std::nullopt;
      if (sequences[n].tokens.size() + count > static_cast<std::size_t>(config.capacity)) return std::nullopt;
      after.let_go(after.sequences[n]);
    }
    for (std::size_t b = 0; b < counts.size(); ++b)
      after.add_tokens(after.sequences[static_cast<std::size_t>(first) + b], b, counts[b], {&k, &v});
    if (after.pages_in_use() > *config.pages) return std::nullopt;
    return after;
  }

  struct KeysAndValues {
    const Tokens *k, *v;
  };
  void add_tokens(Sequence& s, std::size_t b, std::int64_t count, KeysAndValues from) {
    if (count == 0) return;
    if (s.tokens.size() % static_cast<std::size_t>(*config.page_size) != 0 && is_shared(s.pages.back()))
      s.pages.back() = next_page++;
    for (std::int64_t t = 0; t < count; ++t) {
      Token token;
      for (std::int64_t h = 0; h < config.kv_heads; ++h) {
        const auto row = [&](const Tokens& x) {
          std::vector<float> values;
          for (std::int64_t d = 0; d < x.shape().dim; ++d)
            values.push_back(x.get({static_cast<std::int64_t>(b), h, t, d}));
          return values;
        };
        token.k.push_back(key_to_store(row(*from.k), static_cast<std::int64_t>(s.tokens.size())));
        token.v.push_back(through(config.type, row(*from.v)));
      }
      s.tokens.push_back(std::move(token));
      if (pages_for(s.tokens.size()) > static_cast<std::int64_t>(s.pages.size()))
        s.pages.push_back(next_page++);
    }
  }

  bool has_prefix(std::int64_t n, std::int64_t length) const {
    if (!is_in_use(n)) return false;
    const Sequence& s = sequences[static_cast<std::size_t>(n)];
    if (length < 0 || length > static_cast<std::int64_t>(s.tokens.size())) return false;
    return length <= front_end() || s.kept_from == front_end() ||
           length - config.window->length >= s.kept_from;
  }
  void truncate(Sequence& s, std::int64_t length) const {
    s.tokens.resize(static_cast<std::size_t>(length));
    s.pages.resize(static_cast<std::size_t>(pages_for(s.tokens.size())));
    if (length <= front_end()) s.kept_from = front_end();
  }

  // Where a new sequence goes.
  std::size_t place() {
    for (std::size_t n = 0; n < sequences.size(); ++n)
      if (sequences[n].is_released) return n;
    sequences.emplace_back();
    return sequences.size() - 1;
  }
  std::int64_t add(const Sequence& s) {
    const std::size_t n = place();
    sequences[n] = s;
    return static_cast<std::int64_t>(n);
  }
  Sequence empty() const {
    Sequence s;
    s.kept_from = front_end();
    return s;
  }

  Contents contents(std::size_t n) const {
    const Sequence& s = sequences[n];
    Contents all;
    for (std::size_t h = 0; h < static_cast<std::size_t>(config.kv_heads); ++h)
      for (std::size_t t = 0; t < s.tokens.size(); ++t) {
        const auto at = static_cast<std::int64_t>(t);
        const bool is_there = at < front_end() || at >= s.kept_from;
        for (const float x : s.tokens[t].k[h]) all.k.push_back(is_there ? x : 0);
        for (const float x : s.tokens[t].v[h]) all.v.push_back(is_there ? x : 0);
      }
    return all;
  }
};

}  // namespace heed::test
