// SPDX-License-Identifier: Apache-2.0
// Pages of one size in one allocation, each with a count of the tables that list it, and of the calls that
// copy from it. The counts are for one call at a time: the cache's lock guards them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "backend/backend.hpp"

namespace heed::cache {

using backend::DeviceArray, backend::DevicePages, backend::DeviceSide, backend::NotFinite;

class PagePool {
 public:
  struct Size {
    std::int64_t pages, page_bytes;
    std::int64_t zero_bytes;  // of the page of zeros: page_bytes, or 0 where no window releases anything
    Device device = Device::cpu;
  };

  // Throws Error::capacity when there is no memory. Memory is not touched before a page of it is taken.
  explicit PagePool(const Size&);

  std::int64_t pages() const { return pages_; }
  std::int64_t in_use() const { return static_cast<std::int64_t>(uses_.size() - returned_.size()); }
  std::int64_t free() const { return pages_ - in_use(); }

  std::int64_t ever_used() const { return static_cast<std::int64_t>(uses_.size()); }

  unsigned char* at(std::int64_t page) { return memory_ + page * page_bytes_; }
  std::int64_t number_of(const unsigned char* page) const { return (page - memory_) / page_bytes_; }
  const unsigned char* zeros() const { return memory_ + pages_ * page_bytes_; }
  std::int32_t users(const unsigned char* page) const { return uses_[index(page)].tables; }

  const Backend& backend() const { return backend_; }             // of the device that the pages lie on
  const DevicePages* on_device() const { return device_.get(); }  // null: the CPU's memory

  // The pages of another pool that tables list, so many each, by number; no more than there are here. Nothing
  // has been taken here. What is listed stays as it is meanwhile.
  void copy(const PagePool&, std::span<const std::int32_t> tables);

  // A page with one user. There is one: the caller has looked.
  unsigned char* take() noexcept;
  void share(const unsigned char* page) noexcept { ++uses_[index(page)].tables; }
  void drop(const unsigned char* page) noexcept;

  // Somebody copies from a page, which may be dropped and taken again meanwhile, but not be written to.
  void begin_copy(const unsigned char* page) noexcept { ++uses_[index(page)].copies, ++copies_; }
  void end_copy(const unsigned char* page) noexcept { --uses_[index(page)].copies, --copies_; }
  bool has_copies() const { return copies_ > 0; }
  bool is_copied(const unsigned char* page) const { return uses_[index(page)].copies > 0; }

  // Takes drops back, all since returned() was noted: first every page that was dropped is shared again.
  std::size_t returned() const { return returned_.size(); }
  void forget_returned(std::size_t since) noexcept { returned_.resize(since); }

 private:
  struct Free {
    void operator()(unsigned char* memory) const noexcept { ::operator delete(memory, std::align_val_t{64}); }
  };
  std::size_t index(const unsigned char* page) const { return static_cast<std::size_t>(number_of(page)); }

  const Backend& backend_;
  std::int64_t pages_, page_bytes_;
  std::unique_ptr<unsigned char, Free> host_{};  // one of these two has the memory
  std::unique_ptr<DevicePages> device_{};
  unsigned char* memory_ = nullptr;
  struct Uses {
    std::int32_t tables = 0, copies = 0;
  };
  // Both have room for every page from the beginning, so that nothing after it allocates. A page beyond the
  // end of uses_ was never taken.
  std::vector<Uses> uses_{};
  std::vector<std::int32_t> returned_{};
  std::int64_t copies_ = 0;  // of all pages
};

}  // namespace heed::cache
