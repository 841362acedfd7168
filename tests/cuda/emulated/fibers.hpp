// SPDX-License-Identifier: Apache-2.0
// A block of threads on one CPU core: every thread is a fiber that runs until it must wait for others.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

namespace heed::cuda::emulated {

// The thread that runs, and its block.
inline int running = 0;
inline std::int64_t block = 0;
inline std::int64_t rounds = 0;  // that have ended, of all launches

// Runs body once for every thread of every block, the blocks one after the other.
void launch(std::int64_t blocks, int threads, const std::function<void()>& body);

inline int current_thread() { return running; }
inline std::int64_t current_block() { return block; }
void sync_block();                            // until all threads of the block that still run have arrived
bool any(bool one);                           // likewise
void named_sync(int barrier, int threads);    // until this many have arrived at this barrier
void named_arrive(int barrier, int threads);  // arrives and goes on
bool named_any(int barrier, int threads, bool one);
void step_aside();                  // all others run until they wait
float exchange(float x, int bits);  // until all threads of the warp have arrived

// What the threads of a warp show each other: all have arrived when the first returns, and none goes on
// before the last.
class Shown {
 public:
  explicit Shown(const void* mine);
  ~Shown();
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  const void* of(int lane) const;
};

// Copies of two things that a thread gave, one after the other: room for the next without waiting for those
// who read the last.
struct Given {
  static constexpr std::size_t bytes = 128;
  alignas(32) unsigned char at[2][bytes];
  int last;
};
Given& given_by(int thread);

// What the threads of a warp give each other; all have arrived when it is made. They ask at the same places,
// so they have given equally often, and who gives the next thing but one has seen all others read this one.
template <class T>
class FromWarp {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= Given::bytes);

 public:
  explicit FromWarp(const T& mine) {
    Given& own = given_by(running);
    turn_ = own.last = 1 - own.last;
    std::memcpy(own.at[turn_], &mine, sizeof mine);
    step_aside();
  }
  const T& of(int lane) const {
    constexpr int warp = 32;
    return *reinterpret_cast<const T*>(given_by(running / warp * warp + lane).at[turn_]);
  }

 private:
  int turn_;
};

}  // namespace heed::cuda::emulated
