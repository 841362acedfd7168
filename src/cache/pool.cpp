// SPDX-License-Identifier: Apache-2.0
#include "cache/pool.hpp"

#include <cstring>

#include "backend/backend.hpp"
#include "refusal/refusal.hpp"
#include "system/system.hpp"

namespace heed::cache {

PagePool::PagePool(const Size& size)
    : backend_(backend_of("config", size.device)), pages_(size.pages), page_bytes_(size.page_bytes) {
  try {
    const auto bytes = static_cast<std::size_t>(pages_ * page_bytes_ + size.zero_bytes);
    device_ = backend_.make_pages(static_cast<std::int64_t>(bytes));
    if (device_) {
      memory_ = device_->memory();
    } else {
      host_.reset(static_cast<unsigned char*>(::operator new(bytes, std::align_val_t{64})));
      memory_ = host_.get();
      system::prefer_large_pages(memory_, bytes);
    }
    uses_.reserve(static_cast<std::size_t>(pages_));
    returned_.reserve(static_cast<std::size_t>(pages_));
  } catch (const std::bad_alloc&) {
    throw refusal(Error::capacity, "config.pages: no memory for ", pages_, " pages of ", page_bytes_,
                  " bytes");
  }
  unsigned char* const zeros = memory_ + pages_ * page_bytes_;
  if (device_)
    device_->clear(zeros, size.zero_bytes);
  else
    std::memset(zeros, 0, static_cast<std::size_t>(size.zero_bytes));
}

void PagePool::copy(const PagePool& other, std::span<const std::int32_t> tables) {
  const auto copy_run = [&](std::size_t first, std::size_t end) {
    const auto at = static_cast<std::int64_t>(first) * page_bytes_,
               bytes = static_cast<std::int64_t>(end - first) * page_bytes_;
    const unsigned char* from = other.memory_ + at;
    if (device_ && other.device_)
      device_->copy(from, memory_ + at, bytes);
    else if (device_)
      device_->send(from, memory_ + at, bytes);
    else if (other.device_)
      other.device_->bring(from, memory_ + at, bytes);
    else
      std::memcpy(memory_ + at, from, static_cast<std::size_t>(bytes));
  };
  uses_.resize(tables.size());
  for (std::size_t page = 0, end; page < tables.size(); page = end) {
    end = page + 1;
    if (tables[page] == 0) {
      returned_.push_back(static_cast<std::int32_t>(page));
      continue;
    }
    while (end < tables.size() && tables[end] > 0) ++end;
    copy_run(page, end);
    for (std::size_t i = page; i < end; ++i) uses_[i].tables = tables[i];
  }
}

// The page returned last comes first: its lines may still be in the processor's caches.
unsigned char* PagePool::take() noexcept {
  if (returned_.empty()) {
    uses_.push_back({.tables = 1});
    return at(static_cast<std::int64_t>(uses_.size()) - 1);
  }
  const std::int32_t page = returned_.back();
  returned_.pop_back();
  uses_[static_cast<std::size_t>(page)].tables = 1;
  return at(page);
}

void PagePool::drop(const unsigned char* page) noexcept {
  if (--uses_[index(page)].tables == 0) returned_.push_back(static_cast<std::int32_t>(index(page)));
}

}  // namespace heed::cache
