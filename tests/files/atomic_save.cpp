// SPDX-License-Identifier: Apache-2.0
// A save leaves the new file or the old one, and nothing else in the folder.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "disk_calls.hpp"
#include "files/atomic_file.hpp"
#include "sample_arrays.hpp"
#include "scratch_folder.hpp"

namespace heed::test {
namespace {

using Names = std::set<std::string>;

class atomic_save : public ScratchFolder {};

// No file may grow beyond `bytes` while this lives: what a full disk looks like to a writer.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    ::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int) = SIG_DFL;
};

TEST_F(atomic_save, a_save_replaces_the_file_and_leaves_no_other) {
  const Array first = random_array(Element::f32, {100}, 1), second = random_array(Element::u8, {3}, 2);
  write_npy("a.npy", first);
  write_npy("a.npy", second);
  EXPECT_TRUE(same(read_npy("a.npy"), second));
  write_safetensors("a.safetensors", {{"a", first}});
  write_safetensors("a.safetensors", {{"b", second}});
  EXPECT_TRUE(read_safetensors("a.safetensors").contains("b"));
  EXPECT_EQ(names_in("."), (Names{"a.npy", "a.safetensors"}));
}

TEST_F(atomic_save, a_write_that_fails_halfway_keeps_the_old_file) {
  const Array old = random_array(Element::f32, {10}, 3), larger = random_array(Element::f32, {100000}, 4);
  write_npy("a.npy", old);
  write_safetensors("a.safetensors", {{"a", old}});
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(refusal([&] { write_npy("a.npy", larger); }), "file: a.npy: cannot be written: File too large");
    EXPECT_EQ(refusal([&] { write_safetensors("a.safetensors", {{"a", larger}}); }),
              "file: a.safetensors: cannot be written: File too large");
    EXPECT_EQ(refusal([&] { write_npy("new.npy", larger); }),
              "file: new.npy: cannot be written: File too large");
  }
  EXPECT_EQ(names_in("."), (Names{"a.npy", "a.safetensors"}));
  EXPECT_TRUE(same(read_npy("a.npy"), old));
  EXPECT_TRUE(same(read_safetensors("a.safetensors").at("a"), old));
}

TEST_F(atomic_save, an_array_that_is_refused_keeps_the_old_file) {
  write_npy("a.npy", random_array(Element::f32, {10}, 5));
  const std::string before = file_bytes("a.npy");
  EXPECT_NE(refusal([] { write_npy("a.npy", {Element::f32, {2}, {}}); }), "nothing");
  EXPECT_EQ(file_bytes("a.npy"), before);
  EXPECT_EQ(names_in("."), Names{"a.npy"});
}

TEST_F(atomic_save, the_file_is_on_disk_before_it_has_the_name_and_the_name_after) {
  const DiskCalls calls;
  write_npy("a.npy", Array::from_floats({}, {1}));
  EXPECT_EQ(calls.made(), (std::vector<std::string>{"fsync file", "rename", "fsync folder"}));
}

TEST_F(atomic_save, a_disk_that_fails_before_the_rename_keeps_the_old_file) {
  const Array old = random_array(Element::f32, {10}, 8), young = random_array(Element::f32, {20}, 9);
  write_npy("a.npy", old);
  {
    const DiskCalls calls("fsync file");
    EXPECT_EQ(refusal([&] { write_npy("a.npy", young); }),
              "file: a.npy: cannot be flushed to disk: Input/output error");
    EXPECT_EQ(calls.made(), std::vector<std::string>{"fsync file"});
  }
  {
    const DiskCalls calls("rename");
    EXPECT_EQ(refusal([&] { write_npy("a.npy", young); }),
              "file: a.npy: cannot be replaced: Input/output error");
  }
  EXPECT_TRUE(same(read_npy("a.npy"), old));
  EXPECT_EQ(names_in("."), Names{"a.npy"});
}

TEST_F(atomic_save, a_folder_that_cannot_be_flushed_is_reported_after_the_file_is_whole) {
  const Array young = random_array(Element::f32, {20}, 10);
  write_npy("a.npy", random_array(Element::f32, {10}, 11));
  {
    const DiskCalls calls("fsync folder");
    EXPECT_EQ(refusal([&] { write_npy("a.npy", young); }),
              "file: a.npy: is saved, but its folder cannot be flushed to disk: Input/output error");
  }
  EXPECT_TRUE(same(read_npy("a.npy"), young));
  EXPECT_EQ(names_in("."), Names{"a.npy"});
}

TEST_F(atomic_save, a_folder_that_is_missing_is_an_error) {
  EXPECT_EQ(refusal([] { write_npy("nowhere/a.npy", Array::from_floats({}, {1})); }),
            "file: nowhere/a.npy: its folder cannot be opened: No such file or directory");
  put_file("plain", "");
  EXPECT_EQ(refusal([] { write_npy("plain/a.npy", Array::from_floats({}, {1})); }),
            "file: plain/a.npy: its folder cannot be opened: Not a directory");
  EXPECT_EQ(names_in("."), Names{"plain"});
}

TEST_F(atomic_save, only_regular_files_are_replaced) {
  const Array one = Array::from_floats({}, {1});
  std::filesystem::create_directory("folder");
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  EXPECT_EQ(refusal([&] { write_npy("folder", one); }), "file: folder: is not a regular file");
  EXPECT_EQ(refusal([&] { write_safetensors("folder", {{"a", one}}); }),
            "file: folder: is not a regular file");
  EXPECT_EQ(refusal([&] { write_npy("pipe", one); }), "file: pipe: is not a regular file");
  EXPECT_EQ(refusal([&] { read_npy("pipe"); }), "file: pipe: is not a regular file");
  EXPECT_EQ(refusal([&] { write_npy("/dev/full", one); }), "file: /dev/full: is not a regular file");
  EXPECT_EQ(refusal([&] { write_npy("folder/", one); }), "file: folder/: does not name a file");
  EXPECT_EQ(refusal([&] { write_npy("", one); }), "file: : does not name a file");
  EXPECT_EQ(names_in("."), (Names{"folder", "pipe"}));
  EXPECT_TRUE(names_in("folder").empty());
}

TEST_F(atomic_save, a_name_as_long_as_the_file_system_allows_can_be_saved) {
  const std::string longest(255, 'n');
  write_npy(longest, Array::from_floats({}, {1}));
  EXPECT_EQ(names_in("."), Names{longest});
  EXPECT_EQ(refusal([&] { write_npy(longest + "n", Array::from_floats({}, {1})); }),
            "file: " + longest + "n: cannot be replaced: File name too long");
  EXPECT_EQ(names_in("."), Names{longest});
}

TEST_F(atomic_save, a_link_is_followed_and_permissions_are_kept) {
  const Array old = random_array(Element::f32, {1}, 6), young = random_array(Element::f32, {2}, 7);
  std::filesystem::create_directory("real");
  write_npy("real/a.npy", old);
  ASSERT_EQ(::chmod("real/a.npy", 0604), 0);
  std::filesystem::create_symlink("real/a.npy", "link");
  std::filesystem::create_symlink("link", "link to link");
  std::filesystem::create_symlink("real/b.npy", "dangling");
  write_npy("link to link", young);
  write_npy("dangling", young);
  EXPECT_TRUE(std::filesystem::is_symlink("link"));
  EXPECT_TRUE(same(read_npy("real/a.npy"), young));
  EXPECT_TRUE(same(read_npy("real/b.npy"), young));
  struct stat status{};
  ASSERT_EQ(::stat("real/a.npy", &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0604u);
  EXPECT_EQ(names_in("real"), (Names{"a.npy", "b.npy"}));
}

TEST_F(atomic_save, names_left_by_a_killed_process_are_stepped_over) {
  for (int i = 0; i < 300; ++i) {
    put_file(".heed-" + std::to_string(::getpid()) + "-" + std::to_string(i) + ".tmp", "left");
  }
  write_npy("a.npy", Array::from_floats({}, {1}));
  EXPECT_EQ(names_in(".").size(), 301u);
  EXPECT_EQ(read_npy("a.npy").to_floats(), std::vector<float>{1});
}

TEST_F(atomic_save, a_process_that_is_killed_leaves_nothing) {
  if (::close(::open(".", O_TMPFILE | O_WRONLY, 0600)) != 0)
    GTEST_SKIP() << "the file system has no files without a name";
  put_file("old", "old");
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const pid_t child = ::fork();
    if (child == 0) {
      files::AtomicFile young("young"), replacing("old");
      for (files::AtomicFile* file : {&young, &replacing}) file->write("half a file", 11);
      ::signal(signal, SIG_DFL);
      ::raise(signal);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    EXPECT_EQ(names_in("."), Names{"old"});
    EXPECT_EQ(file_bytes("old"), "old");
  }
}

TEST_F(atomic_save, a_file_system_without_files_that_have_no_name_will_do) {
  const DiskCalls calls("open without a name");
  const Array old = random_array(Element::f32, {10}, 12), larger = random_array(Element::f32, {100000}, 13);
  write_npy("a.npy", old);
  EXPECT_EQ(calls.made(), (std::vector<std::string>{"fsync file", "rename", "fsync folder"}));
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(refusal([&] { write_npy("a.npy", larger); }), "file: a.npy: cannot be written: File too large");
  }
  EXPECT_TRUE(same(read_npy("a.npy"), old));
  EXPECT_EQ(names_in("."), Names{"a.npy"});
}

TEST_F(atomic_save, a_reader_sees_one_save_or_another_and_never_a_mixture) {
  const Array zeros = Array::from_floats({50000}, std::vector<float>(50000, 0.0f));
  const Array ones = Array::from_floats({60000}, std::vector<float>(60000, 1.0f));
  write_npy("a.npy", zeros);
  std::atomic<bool> is_done = false;
  std::thread writer([&] {
    for (int i = 0; i < 40; ++i) write_npy("a.npy", i % 2 == 0 ? ones : zeros);
    is_done = true;
  });
  int failures = 0, reads = 0;
  do {
    try {
      const Array found = read_npy("a.npy");
      if (!same(found, zeros) && !same(found, ones)) ++failures;
    } catch (const Error& error) {
      ++failures;
      ADD_FAILURE() << error.what();
    }
    ++reads;
  } while (!is_done);
  writer.join();
  EXPECT_EQ(failures, 0) << "of " << reads << " reads";
  EXPECT_EQ(names_in("."), Names{"a.npy"});
}

}  // namespace
}  // namespace heed::test
