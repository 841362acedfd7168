// SPDX-License-Identifier: Apache-2.0
// The cache as c.h has it.
#include "heed/cache.hpp"

#include "c/call.hpp"
#include "c/rotary.hpp"
#include "c/status.hpp"
#include "c/structs.hpp"

namespace heed::c {
namespace {

constexpr std::array types{
    Choice<CacheType>{HEED_CACHE_TYPE_F32, "HEED_CACHE_TYPE_F32", CacheType::f32},
    Choice<CacheType>{HEED_CACHE_TYPE_F16, "HEED_CACHE_TYPE_F16", CacheType::f16},
    Choice<CacheType>{HEED_CACHE_TYPE_BF16, "HEED_CACHE_TYPE_BF16", CacheType::bf16},
    Choice<CacheType>{HEED_CACHE_TYPE_INT8, "HEED_CACHE_TYPE_INT8", CacheType::int8},
};
using When = CacheRotary::When;
constexpr std::array whens{
    Choice<When>{HEED_ROTARY_WHEN_APPEND, "HEED_ROTARY_WHEN_APPEND", When::append},
    Choice<When>{HEED_ROTARY_WHEN_READ, "HEED_ROTARY_WHEN_READ", When::read},
};

KvCacheConfig to_config(const heed_cache_config* given) {
  const heed_cache_config c = read_known("config", given);
  KvCacheConfig config{.kv_heads = c.kv_heads, .capacity = c.capacity, .dim = c.dim};
  if (c.batch != 0) config.batch = c.batch;
  if (c.value_dim != 0) config.value_dim = c.value_dim;
  if (c.page_size != 0) config.page_size = c.page_size;
  if (c.pages != 0) config.pages = c.pages;
  if (c.window.length != 0 || c.window.front != 0)
    config.window = CacheWindow{.length = c.window.length, .front = c.window.front};
  config.type = choose("config", "type", c.type, types);
  const When when = choose("config", "rotary_when", c.rotary_when, whens);
  if (const auto rotary = to_rotary("config.rotary", c.rotary))
    config.rotary = CacheRotary{*rotary, when};
  else if (when != When::append)
    throw refusal(Error::value, "config.rotary_when: given, but rotary is not");
  return config;
}

// What a function does with the cache it is given, and the view of k or v by pointer.
template <class Cache, class Body>
heed_status with(Cache* handle, const Body& body) {
  return status_of([&] {
    check_pointer("cache", handle);
    body(handle->cache);
  });
}

template <class CView>
auto view_at(const char* name, const CView* view) {
  check_pointer(name, view);
  return to_view(name, *view);
}

}  // namespace
}  // namespace heed::c

using namespace heed::c;

heed_status heed_cache_create(const heed_cache_config* config, heed_cache** cache) {
  return status_of([&] {
    check_pointer("cache", cache);
    *cache = new heed_cache{heed::KvCache(to_config(config))};
  });
}

void heed_cache_destroy(heed_cache* cache) { delete cache; }

heed_status heed_cache_append(heed_cache* handle, const heed_view* given_k, const heed_view* given_v,
                              const heed_int64s* given_counts) {
  return with(handle, [&](heed::KvCache& cache) {
    const heed::View k = view_at("k", given_k);
    const heed::View v = view_at("v", given_v);
    cache.append(k, v, to_span("counts", given_counts ? *given_counts : heed_int64s{}));
  });
}

heed_status heed_cache_append_to(heed_cache* handle, int64_t sequence, const heed_view* given_k,
                                 const heed_view* given_v) {
  return with(handle, [&](heed::KvCache& cache) {
    const heed::View k = view_at("k", given_k);
    const heed::View v = view_at("v", given_v);
    cache.append_to(sequence, k, v);
  });
}

heed_status heed_cache_truncate(heed_cache* handle, int64_t sequence, int64_t length) {
  return with(handle, [&](heed::KvCache& cache) { cache.truncate(sequence, length); });
}

heed_status heed_cache_fork(heed_cache* handle, int64_t sequence, int64_t* number) {
  return with(handle, [&](heed::KvCache& cache) {
    check_pointer("number", number);
    *number = cache.fork(sequence);
  });
}

heed_status heed_cache_fork_at(heed_cache* handle, int64_t sequence, int64_t length, int64_t* number) {
  return with(handle, [&](heed::KvCache& cache) {
    check_pointer("number", number);
    *number = cache.fork(sequence, length);
  });
}

heed_status heed_cache_add(heed_cache* handle, int64_t* number) {
  return with(handle, [&](heed::KvCache& cache) {
    check_pointer("number", number);
    *number = cache.add();
  });
}

heed_status heed_cache_release(heed_cache* handle, int64_t sequence) {
  return with(handle, [&](heed::KvCache& cache) { cache.release(sequence); });
}

heed_status heed_cache_length(const heed_cache* handle, int64_t sequence, int64_t* length) {
  return with(handle, [&](const heed::KvCache& cache) {
    check_pointer("length", length);
    *length = cache.length(sequence);
  });
}

heed_status heed_cache_lengths(const heed_cache* handle, int64_t* lengths, size_t room, size_t* sequences) {
  return with(handle, [&](const heed::KvCache& cache) {
    check_pointer("sequences", sequences);
    const auto all = cache.lengths();
    if (lengths && room < all.size())
      throw heed::refusal(heed::Error::shape, "room: ", static_cast<std::int64_t>(room),
                          " lengths are fewer than the cache's sequences: ", std::ssize(all));
    for (std::size_t i = 0; lengths && i < all.size(); ++i) lengths[i] = all[i].value_or(-1);
    *sequences = all.size();
  });
}

heed_status heed_cache_read(const heed_cache* handle, int64_t sequence, const heed_mutable_view* given_k,
                            const heed_mutable_view* given_v) {
  return with(handle, [&](const heed::KvCache& cache) {
    const heed::MutableView k = view_at("k", given_k);
    const heed::MutableView v = view_at("v", given_v);
    cache.read(sequence, k, v);
  });
}

heed_status heed_cache_save(const heed_cache* handle, const char* path) {
  return with(handle, [&](const heed::KvCache& cache) {
    check_pointer("path", path);
    cache.save(path);
  });
}

heed_status heed_cache_load(const char* path, heed_cache** cache) {
  return status_of([&] {
    check_pointer("path", path);
    check_pointer("cache", cache);
    *cache = new heed_cache{heed::KvCache::load(path)};
  });
}
