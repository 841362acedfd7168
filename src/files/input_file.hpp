// SPDX-License-Identifier: Apache-2.0
// An open file of the operating system, closed when it goes out of scope, and the error of a call that failed
// on one.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "heed/error.hpp"

namespace heed::files {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (is_open()) ::close(number_);
  }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

inline Error system_error(const std::string& what_failed, int error_number) {
  return Error(Error::file, what_failed + ": " + std::generic_category().message(error_number));
}

// A file that is read front to back, or at places. Its real size is known before anything in it is believed.

class InputFile {
 public:
  explicit InputFile(const std::filesystem::path&);

  const std::string& name() const { return name_; }  // begins every sentence about this file
  std::int64_t size() const { return size_; }

  // The next `count` bytes; a file that shrinks while it is read is an error.
  void read(void* into, std::size_t count);
  // The same from a place of its own, which moves nothing.
  void read_at(std::int64_t offset, void* into, std::size_t count) const;

 private:
  std::string name_;
  Descriptor descriptor_;
  std::int64_t size_ = 0, position_ = 0;
};

}  // namespace heed::files
