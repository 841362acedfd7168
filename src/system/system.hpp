// SPDX-License-Identifier: Apache-2.0
// What heed asks of the operating system: files, forks, pages, and instructions that need its leave.
// posix.cpp (Linux, macOS, WebAssembly) and windows.cpp answer. A file function that fails leaves the reason
// in errno.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace heed::system {

// An open file, closed when it goes out of scope.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  bool close();  // true where there was nothing to close

 private:
  int number_ = -1;
};

struct FileStatus {
  bool is_regular = false;
  std::int64_t size = 0;
  unsigned permissions = 0;
};

Descriptor open_to_read(const std::filesystem::path&);  // of a pipe that nobody writes to, too: never waits
bool examine(const Descriptor&, FileStatus&);
// As many bytes as the system gives or takes at once; -1 where it fails.
std::ptrdiff_t read_some(const Descriptor&, std::int64_t offset, void* into, std::size_t count);
std::ptrdiff_t write_some(const Descriptor&, const void* from, std::size_t count);
bool set_permissions(const Descriptor&, unsigned permissions);
bool flush(const Descriptor&);

// A folder whose files are named, replaced and removed; on POSIX it stays the same one when it is renamed.
class Folder {
 public:
  bool open(const std::filesystem::path&);

  bool examine(const std::string& name, FileStatus&) const;
  // To be written: under a new name (errno is EEXIST where somebody has it), or under none, gone with the
  // process. The latter is not open where the file system has no such files, or nothing shows them.
  Descriptor create(const std::string& name) const;
  Descriptor create_without_name() const;
  bool give_name(const Descriptor&, const std::string& name) const;
  bool rename(const std::string& from, const std::string& to) const;
  void remove(const std::string& name) const;
  bool flush() const;  // what was renamed

 private:
  std::filesystem::path path_{};  // Windows has no open folders
  Descriptor open_{};
};

int process_id();

// Called in the child after every fork.
void in_forked_children(void (*call)());

// Asks the system for large pages of its own below these bytes: a processor reads ahead only as far as one of
// the system's pages goes, and forgets where thousands of small ones lie. A system that cannot loses nothing.
void prefer_large_pages(void* memory, std::size_t bytes);

// AMX's tile registers: lent to a process that asks. For a processor that has them.
bool borrow_tile_registers();
bool has_arm_bf16();  // FEAT_BF16: BFMMLA

}  // namespace heed::system
