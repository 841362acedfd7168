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
    users_.reserve(static_cast<std::size_t>(pages_));
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

void PagePool::copy(const PagePool& other) {
  const std::int64_t bytes = other.ever_used() * page_bytes_;
  if (device_ && other.device_)
    device_->copy(other.memory_, memory_, bytes);
  else if (device_)
    device_->send(other.memory_, memory_, bytes);
  else if (other.device_)
    other.device_->bring(other.memory_, memory_, bytes);
  else
    std::memcpy(memory_, other.memory_, static_cast<std::size_t>(bytes));
  users_.assign(other.users_.begin(), other.users_.end());
  returned_.assign(other.returned_.begin(), other.returned_.end());
}

// The page returned last comes first: its lines may still be in the processor's caches.
unsigned char* PagePool::take() noexcept {
  if (returned_.empty()) {
    users_.push_back(1);
    return at(static_cast<std::int64_t>(users_.size()) - 1);
  }
  const std::int32_t page = returned_.back();
  returned_.pop_back();
  users_[static_cast<std::size_t>(page)] = 1;
  return at(page);
}

void PagePool::drop(const unsigned char* page) noexcept {
  if (--users_[index(page)] == 0) returned_.push_back(static_cast<std::int32_t>(index(page)));
}

}  // namespace heed::cache
