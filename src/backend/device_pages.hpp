// SPDX-License-Identifier: Apache-2.0
// Pages in the memory of a device that is not the CPU, and what is done there to the tokens they hold: in the
// order of calls, without waiting where nothing comes back.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "cache/layout.hpp"
#include "heed/cache.hpp"

namespace heed::backend {

using cache::PageLayout, cache::Side, cache::TokenRun;

// One side of some pages.
struct DeviceSide {
  const PageLayout& layout;
  CacheType type;
  Side side;
};

// An array of the device's that goes when this does, after what was launched on it.
struct DeviceArray {
  std::shared_ptr<void> memory;
  MutableView view;
};

struct NotFinite {
  std::int64_t head = 0, token = -1;  // -1: all are finite
};

class DevicePages {
 public:
  virtual ~DevicePages() = default;

  virtual unsigned char* memory() const = 0;

  // Refuses a view in the memory of another device of the kind.
  virtual void check_place(const char* name, const View&) const = 0;
  // What store_tokens() and fetch_token() of cache/store.hpp do, for all heads of these runs.
  virtual void store(const DeviceSide&, const View& from, std::span<const TokenRun>) const = 0;
  virtual void fetch(const DeviceSide&, const MutableView& into, std::span<const TokenRun>) const = 0;
  // The first of `count` tokens of batch entry b that is not finite. Waits.
  virtual NotFinite find_not_finite(const View&, std::int64_t b, std::int64_t count) const = 0;

  // An array beside the pages, packed.
  virtual DeviceArray make(const Shape&, DType) const = 0;

  // Bytes of pages: within the device, from the CPU's memory, and to it. The last two wait.
  virtual void copy(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void send(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void bring(const unsigned char* from, unsigned char* into, std::int64_t bytes) const = 0;
  virtual void clear(unsigned char* at, std::int64_t bytes) const = 0;
};

}  // namespace heed::backend
