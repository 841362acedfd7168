// SPDX-License-Identifier: Apache-2.0
// The keys and values of sequences that grow: what autoregressive decoding reads at every step. Tokens live
// in pages of a pool the user sizes; attention() reads them where they lie.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "heed/dtype.hpp"
#include "heed/export.hpp"
#include "heed/files.hpp"
#include "heed/rotary.hpp"
#include "heed/tensor.hpp"
#include "heed/version.hpp"

// The library's own.
namespace heed::cache {
struct Access;
struct State;
}  // namespace heed::cache

namespace HEED_NAMESPACE {

// Bounds a sequence: attention sees the last `length` tokens, its own included, and the first `front` ones
// ("attention sinks"). Pages between the two are given back to the pool at the next append: none that a token
// of the last append sees, so that append can be rolled back. Positions stay those of the whole sequence.
struct CacheWindow {
  std::int64_t length = 0, front = 0;
};

// When the cache rotates its keys (S15), by their position in the sequence: in f32, then rounded to the
// cache's type. Queries are never rotated by the cache.
struct CacheRotary {
  enum class When : std::uint8_t { append, read };
  Rotary rotary{};
  When when = When::append;
};

struct KvCacheConfig {
  std::int64_t batch = 1;  // sequences there are at the start, all empty
  std::int64_t kv_heads = 0;
  std::int64_t capacity = 0;  // tokens a sequence may hold
  std::int64_t dim = 0;
  std::optional<std::int64_t> value_dim{};  // default: dim
  CacheType type = CacheType::f32;
  // A power of two, at least 16; default: contiguous, one page of `capacity` tokens per sequence.
  std::optional<std::int64_t> page_size{};
  std::optional<std::int64_t> pages{};  // in the pool; default: enough for `batch` full sequences
  std::optional<CacheWindow> window{};
  std::optional<CacheRotary> rotary{};
  // Where the pages lie. On Device::cuda, that device of the kind which is current when the cache is made:
  // then k and v lie there too, and calls run on its legacy stream in their order.
  Device device = Device::cpu;
};

// Sequences are numbered from 0. Every call that changes the cache does all it says or nothing: it throws
// Error (no room: Error::capacity, with how much was missing) and leaves the cache exactly as it was.
//
// Threads: calls on different sequences go on beside each other. Any number of calls may read a sequence at
// once (attention, read, fork; save and to() read all). A change of a sequence beside another call on it is
// refused with Error::busy, and so is a reading call beside a change; nothing waits, nothing tears. The
// counts are never refused.
class HEED_API KvCache {
 public:
  explicit KvCache(const KvCacheConfig&);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  const KvCacheConfig& config() const;  // with every default filled in
  std::int64_t sequences() const;       // how many there are; released numbers count until they are reused
  std::int64_t length(std::int64_t sequence) const;          // tokens appended and not truncated
  std::vector<std::optional<std::int64_t>> lengths() const;  // of all, at one moment; none where released

  // k is (sequences, kv_heads, tokens, dim) and v (sequences, kv_heads, tokens, value_dim), any strides, any
  // dtype: rounded once to the cache's type. Every sequence gets all tokens, or the first counts[b] of them;
  // a released number must get none.
  void append(const View& k, const View& v, std::span<const std::int64_t> counts = {});
  // One sequence: k and v have batch 1.
  void append_to(std::int64_t sequence, const View& k, const View& v);

  // Forgets every token from `length` on: speculative decoding rolls back. Refused where the window of the
  // last token left has lost a page; the length before the last append is always there.
  void truncate(std::int64_t sequence, std::int64_t length);
  void reset(std::int64_t sequence);  // truncate to 0
  void reset();                       // every sequence

  // A new sequence with the first `length` tokens of this one (default: all), sharing its pages until either
  // writes to one: beam search, shared prompts. Returns its number. Costs one count per page.
  std::int64_t fork(std::int64_t sequence, std::optional<std::int64_t> length = {});
  // Gives a sequence's pages back and frees its number for the next fork or add.
  void release(std::int64_t sequence);
  std::int64_t add();  // a new, empty sequence; returns its number, the lowest free one

  std::int64_t bytes() const;            // of the pages in use; shared ones count once
  std::int64_t bytes_per_token() const;  // keys, values and scales of one token, all heads
  std::int64_t pages_in_use() const;

  // Copies a sequence's keys and values as attention sees them: dequantised, rotated. Both are (1, kv_heads,
  // length, ...) of any dtype. Tokens the window released come out as zeros.
  void read(std::int64_t sequence, const MutableView& k, const MutableView& v) const;

  // The same sequences and numbers in the memory of another device, or of this one, with as many pages in the
  // pool, or so many: at least those up to the last in which something lies.
  KvCache to(Device, std::optional<std::int64_t> pages = std::nullopt) const;

  // Pages, tables and configuration; written atomically, checked whole before anything is believed
  // (Error::file).
  void save(const std::filesystem::path&) const;
  static KvCache load(const std::filesystem::path&);  // to the CPU's memory
  // What the file holds, without a file, and no less checked.
  Arrays to_arrays() const;
  static KvCache from_arrays(Arrays);

 private:
  friend cache::Access;
  explicit KvCache(std::unique_ptr<cache::State>);
  std::unique_ptr<cache::State> state_;
};

}  // namespace HEED_NAMESPACE
