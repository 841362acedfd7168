// SPDX-License-Identifier: Apache-2.0
// Messages between processes of one machine, through memory that all of them map. What goes to several ranks
// is written once, and each of them copies it from there: no message needs its sender to look again.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "heed/export.hpp"
#include "heed/group.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// Bytes that several processes map. All of them are there when it is made, or it throws: nobody finds out
// later that the machine has no more.
class HEED_API SharedMemory {
 public:
  // By the first: zeros under a name of its own, which the others are told.
  explicit SharedMemory(std::size_t bytes);
  // By the others. Both throw Error::file.
  SharedMemory(const std::string& name, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&&) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;

  const std::string& name() const { return name_; }
  // When all have mapped it: it ends with the last of them, however they end.
  void forget_name();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void map(int file, std::size_t bytes);

  std::string name_;
  int named_ = -1;  // the file, while it has its name and this has made it
  std::span<std::byte> bytes_{};
};

// What messages between so many ranks need of it.
HEED_API std::size_t bytes_of_shared_messages(int ranks);
// How the bytes are used: processes that say different numbers cannot share them.
HEED_API int layout_of_shared_messages();
// One rank's end. The memory holds zeros before the first is made.
HEED_API std::unique_ptr<Messages> messages_in(SharedMemory, int rank, int ranks);

}  // namespace HEED_NAMESPACE
