// SPDX-License-Identifier: Apache-2.0
// heed as the playground calls it: plain functions over arrays of floats that lie here, where the page reads
// and writes them. Whatever is refused is said in words.
#include <array>
#include <cmath>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "heed/heed.hpp"

namespace {

using heed::KvCache, heed::Shape;

// What play_array() knows by number; page/heed.js has the same list. Queries and results are (heads, tokens,
// dim), keys and values (kv_heads, tokens, dim), weights and scores (heads, tokens, tokens).
enum Name { queries, keys, values, results, weights, raw, softcapped, masked, cached, names };

std::array<std::vector<float>, names> arrays;
std::unique_ptr<bool[]> hidden;
std::vector<KvCache> caches;
std::string sentence;

template <class Work>
int refused(const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    sentence = error.what();
    return 1;
  }
}

struct Problem {
  int tokens, heads, kv_heads, dim;
  Shape queries() const { return {1, heads, tokens, dim}; }
  Shape keys() const { return {1, kv_heads, tokens, dim}; }
  Shape scores() const { return {1, heads, tokens, tokens}; }
};

heed::MutableView written(Name name, const Shape& shape) {
  arrays[name].assign(static_cast<std::size_t>(shape.elements()), 0);
  return {arrays[name], shape};
}

void attend(const Problem& p, const heed::Options& options) {
  const heed::Inputs inputs{
      .q = {arrays[queries], p.queries()}, .k = {arrays[keys], p.keys()}, .v = {arrays[values], p.keys()}};
  const heed::MutableView out = written(results, p.queries()), all = written(weights, p.scores());
  using heed::Stage;
  for (const auto& [stage, name] :
       {std::pair{Stage::raw, raw}, {Stage::softcapped, softcapped}, {Stage::biased, masked}})
    heed::attention(inputs, {.out = out, .weights = all, .scores = {written(name, p.scores()), stage}},
                    options);
}

// One token of all heads, of an array whose heads lie `tokens` apart.
heed::View one_token(Name name, const Shape& all, std::int64_t token) {
  return {arrays[name].data() + token * all.dim, Shape{1, all.heads, 1, all.dim}, heed::bhsd(all)};
}

}  // namespace

extern "C" {

float* play_array(int name, int length) {
  if (length >= 0) arrays[static_cast<std::size_t>(name)].resize(static_cast<std::size_t>(length));
  return arrays[static_cast<std::size_t>(name)].data();
}

bool* play_hidden(int length) {
  hidden = std::make_unique<bool[]>(static_cast<std::size_t>(length));
  return hidden.get();
}

const char* play_sentence() { return sentence.c_str(); }
const char* play_version() { return heed::version(); }

// A scale that is NaN is heed's own, 1/sqrt(dim); a softcap that is NaN is none.
int play_attend(int tokens, int heads, int kv_heads, int dim, float scale, float softcap) {
  return refused([&] {
    heed::Options options{.masks = {heed::Hide{{hidden.get(), Shape{1, 1, tokens, tokens}}}}};
    if (!std::isnan(scale)) options.scale = scale;
    if (!std::isnan(softcap)) options.softcap = softcap;
    attend({tokens, heads, kv_heads, dim}, options);
  });
}

// Which kernel the last problem is computed by.
const char* play_kernel() {
  sentence = heed::kernel_names().front();
  return sentence.c_str();
}

void play_forget_caches() { caches.clear(); }

int play_add_cache(int kv_heads, int dim, int capacity, int type) {
  return refused([&] {
    caches.emplace_back(heed::KvCacheConfig{.kv_heads = kv_heads,
                                            .capacity = capacity,
                                            .dim = dim,
                                            .type = static_cast<heed::CacheType>(type),
                                            .page_size = 16});
  });
}

// Appends the keys and values of one token and attends to the cache with its query. The result, (heads, dim),
// is in `cached`.
int play_append(int cache, int tokens, int heads, int token, float scale, float softcap) {
  return refused([&] {
    KvCache& into = caches[static_cast<std::size_t>(cache)];
    const Problem p{tokens, heads, static_cast<int>(into.config().kv_heads),
                    static_cast<int>(into.config().dim)};
    into.append(one_token(keys, p.keys(), token), one_token(values, p.keys(), token));
    heed::Options options;
    if (!std::isnan(scale)) options.scale = scale;
    if (!std::isnan(softcap)) options.softcap = softcap;
    heed::attention({.q = one_token(queries, p.queries(), token), .cache = &into},
                    {.out = written(cached, {1, heads, 1, p.dim})}, options);
  });
}

double play_cache_bytes(int cache) {
  return static_cast<double>(caches[static_cast<std::size_t>(cache)].bytes());
}
double play_token_bytes(int cache) {
  return static_cast<double>(caches[static_cast<std::size_t>(cache)].bytes_per_token());
}
}
