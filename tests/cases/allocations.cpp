// SPDX-License-Identifier: Apache-2.0
#include "cases/allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace heed::cases {

constinit Allocations allocations;

namespace {

// The size lies in front of each block, in a header as wide as the block's alignment.
std::size_t header_of(std::size_t alignment) { return alignment < 16 ? 16 : alignment; }

bool fails(std::int64_t bytes) {
  Allocations& a = allocations;
  if (a.until_intrusion >= 0 && a.until_intrusion-- == 0) (*a.intrusion)();
  if (a.until_failure >= 0 && a.until_failure-- <= 0) {
    if (--a.failures > 0) a.until_failure = 0;
    return true;
  }
  return bytes > a.max_bytes - a.live_bytes;
}

void* make(std::size_t size, std::size_t alignment) {
  const auto bytes = static_cast<std::int64_t>(size);
  if (bytes < 0 || fails(bytes)) return nullptr;
  const std::size_t header = header_of(alignment);
  auto* block =
      static_cast<std::byte*>(std::aligned_alloc(header, (size + 2 * header - 1) / header * header));
  if (block == nullptr) return nullptr;
  *reinterpret_cast<std::int64_t*>(block) = bytes;
  Allocations& a = allocations;
  ++a.count, ++a.live, a.bytes += bytes;
  if (alignment >= 64) ++a.live_aligned, a.aligned_bytes += bytes;
  const std::int64_t now = a.live_bytes += bytes;
  for (std::int64_t seen = a.peak_bytes; now > seen && !a.peak_bytes.compare_exchange_weak(seen, now);) {
  }
  return block + header;
}

void* make_or_throw(std::size_t size, std::size_t alignment) {
  void* made = make(size, alignment);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

// Not inline: where the compiler sees free() it warns of memory that new allocated.
[[gnu::noinline]] void release(void* p, std::size_t alignment) noexcept {
  if (p == nullptr) return;
  std::byte* block = static_cast<std::byte*>(p) - header_of(alignment);
  const std::int64_t bytes = *reinterpret_cast<std::int64_t*>(block);
  Allocations& a = allocations;
  --a.live, a.live_bytes -= bytes;
  if (alignment >= 64) --a.live_aligned, a.aligned_bytes -= bytes;
  std::free(block);
}

constexpr std::size_t size_of(std::align_val_t a) { return static_cast<std::size_t>(a); }

}  // namespace
}  // namespace heed::cases

// Every form: a sanitizer brings its own, and a block must be freed by the family that made it.
using heed::cases::make, heed::cases::make_or_throw, heed::cases::release, heed::cases::size_of;
using std::align_val_t, std::nothrow_t, std::size_t;

void* operator new(size_t n) { return make_or_throw(n, 16); }
void* operator new[](size_t n) { return make_or_throw(n, 16); }
void* operator new(size_t n, align_val_t a) { return make_or_throw(n, size_of(a)); }
void* operator new[](size_t n, align_val_t a) { return make_or_throw(n, size_of(a)); }
void* operator new(size_t n, const nothrow_t&) noexcept { return make(n, 16); }
void* operator new[](size_t n, const nothrow_t&) noexcept { return make(n, 16); }
void* operator new(size_t n, align_val_t a, const nothrow_t&) noexcept { return make(n, size_of(a)); }
void* operator new[](size_t n, align_val_t a, const nothrow_t&) noexcept { return make(n, size_of(a)); }

void operator delete(void* p) noexcept { release(p, 16); }
void operator delete[](void* p) noexcept { release(p, 16); }
void operator delete(void* p, size_t) noexcept { release(p, 16); }
void operator delete[](void* p, size_t) noexcept { release(p, 16); }
void operator delete(void* p, align_val_t a) noexcept { release(p, size_of(a)); }
void operator delete[](void* p, align_val_t a) noexcept { release(p, size_of(a)); }
void operator delete(void* p, size_t, align_val_t a) noexcept { release(p, size_of(a)); }
void operator delete[](void* p, size_t, align_val_t a) noexcept { release(p, size_of(a)); }
void operator delete(void* p, const nothrow_t&) noexcept { release(p, 16); }
void operator delete[](void* p, const nothrow_t&) noexcept { release(p, 16); }
void operator delete(void* p, align_val_t a, const nothrow_t&) noexcept { release(p, size_of(a)); }
void operator delete[](void* p, align_val_t a, const nothrow_t&) noexcept { release(p, size_of(a)); }
