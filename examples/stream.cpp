// SPDX-License-Identifier: Apache-2.0
// Attention over keys and values in a file that is larger than the memory this program allows itself: a
// stretch of the file is mapped, attended to and unmapped, and the next follows. How long the stretches are
// changes no bit.
#include "heed/stream.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace {

constexpr std::int64_t keys = 1 << 18, dim = 32, queries = 4;
constexpr std::int64_t token = 2 * dim;  // floats: a key, then its value
constexpr std::int64_t file_bytes = keys * token * std::int64_t{sizeof(float)};
constexpr std::int64_t allowed_bytes = file_bytes / 2;

void must(bool went_well, const char* what) {
  if (went_well) return;
  std::perror(what);
  std::exit(1);
}

void write_tokens(std::FILE* file) {
  std::vector<float> some(1024 * token);
  unsigned state = 1;
  for (std::int64_t first = 0; first < keys; first += 1024) {
    for (float& x : some)
      x = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    must(std::fwrite(some.data(), sizeof(float), some.size(), file) == some.size(), "write");
  }
  must(std::fflush(file) == 0, "write");
}

// What this process has mapped so far, and as much again as is allowed.
void limit_memory() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + allowed_bytes);
  const rlimit limit{most, most};
  must(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

// [first, first + count) of the file's tokens, for as long as this lives.
class MappedTokens {
 public:
  MappedTokens(int file, std::int64_t first, std::int64_t count) : count_(count) {
    const std::int64_t begin = first * token * std::int64_t{sizeof(float)}, page = sysconf(_SC_PAGESIZE),
                       before = begin % page;
    bytes_ = static_cast<std::size_t>(before + count * token * std::int64_t{sizeof(float)});
    mapped_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, begin - before);
    must(mapped_ != MAP_FAILED, "mmap");
    floats_ = reinterpret_cast<const float*>(static_cast<const char*>(mapped_) + before);
  }
  ~MappedTokens() { munmap(mapped_, bytes_); }
  MappedTokens(const MappedTokens&) = delete;
  MappedTokens& operator=(const MappedTokens&) = delete;

  heed::View k() const { return {floats_, {.length = count_, .dim = dim}, {.length = token, .dim = 1}}; }
  heed::View v() const {
    return {floats_ + dim, {.length = count_, .dim = dim}, {.length = token, .dim = 1}};
  }

 private:
  std::int64_t count_;
  std::size_t bytes_ = 0;
  void* mapped_ = nullptr;
  const float* floats_ = nullptr;
};

std::vector<float> attend(std::FILE* file, const std::vector<float>& q, std::int64_t stretch) {
  std::vector<float> out(queries * dim);
  const heed::Shape rows{.length = queries, .dim = dim};
  heed::KeyStream stream({.q = {q, rows}, .keys = keys}, {.out = {out, rows}},
                         {.masks = {heed::Causal{heed::Align::ends}}, .threads = 1});
  for (std::int64_t first = 0; first < keys; first += stretch) {
    const MappedTokens tokens(fileno(file), first, std::min(stretch, keys - first));
    stream.add(tokens.k(), tokens.v());
  }
  stream.finish();
  return out;
}

}  // namespace

int main() {
  std::FILE* file = std::tmpfile();
  must(file != nullptr, "a file of its own");
  write_tokens(file);
  const std::vector<float> q(queries * dim, 0.5f);
  limit_memory();
  std::printf("%lld MiB of keys and values, %lld MiB of memory to come\n",
              static_cast<long long>(file_bytes >> 20), static_cast<long long>(allowed_bytes >> 20));
  void* all = mmap(nullptr, static_cast<std::size_t>(file_bytes), PROT_READ, MAP_PRIVATE, fileno(file), 0);
  std::printf("all of the file at once: %s\n", all == MAP_FAILED ? "there is no room" : "mapped");

  const std::vector<float> out = attend(file, q, 16384), again = attend(file, q, 10007);
  const bool same = std::memcmp(out.data(), again.data(), out.size() * sizeof(float)) == 0;
  std::printf("stretches of 16384 keys and of 10007: %s, out[0] = %g\n", same ? "the same bits" : "different",
              static_cast<double>(out[0]));
  return same && all == MAP_FAILED ? 0 : 1;
}
