// SPDX-License-Identifier: Apache-2.0
// Floats that end where memory ends: reading or writing one beyond the last stops the program, also from
// assembly, which no sanitizer watches.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "cases/counter_random.hpp"

namespace heed::simd {

class Guarded {
 public:
  explicit Guarded(std::int64_t count) : count_(static_cast<std::size_t>(count)) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t pages = (count_ * sizeof(float) + page - 1) / page;
    bytes_ = (pages + 1) * page;
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    std::byte* wall = static_cast<std::byte*>(memory_) + pages * page;
    if (mprotect(wall, page, PROT_NONE) != 0) throw std::bad_alloc();
    first_ = reinterpret_cast<float*>(wall) - count_;
  }
  ~Guarded() { munmap(memory_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Guarded& randomize(std::uint64_t stream) {
    for (std::size_t i = 0; i < count_; ++i) first_[i] = cases::uniform(stream, i);
    return *this;
  }
  float* data() { return first_; }
  float& operator[](std::int64_t i) { return first_[i]; }

 private:
  std::size_t count_, bytes_ = 0;
  void* memory_;
  float* first_;
};

}  // namespace heed::simd
