// SPDX-License-Identifier: Apache-2.0
// operator new and delete of this test program: they count, and fail beyond a limit.
#include "allocation_meter.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> held = 0, highest = 0, limit_on_held = ~std::size_t{0};

// Each block remembers its size in front, at a distance that keeps the alignment new promises.
constexpr std::size_t front = alignof(std::max_align_t) > sizeof(std::size_t) ? alignof(std::max_align_t)
                                                                              : 16;

}  // namespace

// Every form is replaced: a sanitizer brings its own, and a block must be freed by the family that made it.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (bytes > limit_on_held - held) return nullptr;
  void* block = std::malloc(bytes + front);
  if (block == nullptr) return nullptr;
  *static_cast<std::size_t*>(block) = bytes;
  const std::size_t now = held += bytes;
  if (now > highest) highest = now;
  return static_cast<std::byte*>(block) + front;
}

void* operator new(std::size_t bytes) {
  void* pointer = operator new(bytes, std::nothrow);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes, std::nothrow);
}

void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  void* block = static_cast<std::byte*>(pointer) - front;
  held -= *static_cast<std::size_t*>(block);
  std::free(block);
}

void operator delete(void* pointer, std::size_t) noexcept { operator delete(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { operator delete(pointer); }
void operator delete[](void* pointer) noexcept { operator delete(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { operator delete(pointer); }
void operator delete[](void* pointer, const std::nothrow_t&) noexcept { operator delete(pointer); }

namespace heed::test {

AllocationMeter::AllocationMeter(std::size_t limit) : before_(held) {
  highest = before_;
  if (limit < limit_on_held - before_) limit_on_held = before_ + limit;
}

AllocationMeter::~AllocationMeter() { limit_on_held = ~std::size_t{0}; }

std::size_t AllocationMeter::peak() const { return highest - before_; }

}  // namespace heed::test
