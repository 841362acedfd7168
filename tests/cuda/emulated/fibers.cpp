// SPDX-License-Identifier: Apache-2.0
// A context is what a thread begins in; from then on they change places by jumps, which ask nothing of the
// operating system, and begin again where they ended.
#undef _FORTIFY_SOURCE  // would take a jump to another stack for a mistake
#include "emulated/fibers.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

namespace heed::cuda::emulated {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;

// g++'s own jumps keep a place in three words; those of the C library were a tenth of the test's time.
#if defined(__GNUC__) && !defined(__clang__)
struct Place {
  void* words[5];
};
[[gnu::noinline]] void jump(Place& to) { __builtin_longjmp(to.words, 1); }
[[gnu::noinline]] void change(Place& from, Place& to) {
  if (__builtin_setjmp(from.words) == 0) jump(to);
}
[[gnu::noinline]] void begin(Place& from, const ucontext_t& context) {
  if (__builtin_setjmp(from.words) == 0) setcontext(&context);
}
#else
struct Place {
  jmp_buf words;
};
void change(Place& from, Place& to) {
  if (_setjmp(from.words) == 0) _longjmp(to.words, 1);
}
void begin(Place& from, const ucontext_t& context) {
  if (_setjmp(from.words) == 0) setcontext(&context);
}
#endif

struct Fiber {
  ucontext_t beginning{};
  Place place{};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  bool has_ended = false;
  float given = 0;
};

Place launcher;
std::vector<std::unique_ptr<Fiber>> fibers;  // as many as any launch has had
std::vector<const void*> shown;              // by each of them
std::vector<Given> gifts;
int threads_of_block = 0, left = 0;  // and how many of them still run
const std::function<void()>* body = nullptr;
bool gathered = false, agreed = false;

// Opens at the end of a round, so that the threads of a warp go on together.
struct Barrier {
  int come = 0, wanted = 0, opened = 0;
  bool gathered = false, agreed = false;
};
Barrier barriers[16];
Barrier of_all;  // of those that still run

Fiber& fiber_of(int thread) { return *fibers[static_cast<std::size_t>(thread)]; }

void end_round() {
  ++rounds;
  agreed = gathered, gathered = false;
  for (Barrier& b : barriers)
    if (b.come > 0 && b.come == b.wanted) {
      b.come = 0, ++b.opened;
      b.agreed = b.gathered, b.gathered = false;
    }
  if (of_all.come == left) of_all.come = 0, ++of_all.opened;
}

// A round is every thread once, up to where it next waits or ends. Goes to the next one's turn, or, where
// none is left, back.
Place& next_place() {
  while (left > 0) {
    while (++running < threads_of_block)
      if (!fiber_of(running).has_ended) return fiber_of(running).place;
    end_round();
    running = -1;
  }
  return launcher;
}

void live() {
  Fiber& mine = fiber_of(running);
  change(mine.place, launcher);
  for (;;) {
    (*body)();
    mine.has_ended = true;
    --left;
    change(mine.place, next_place());
  }
}

void add_fiber() {
  running = static_cast<int>(fibers.size());
  fibers.push_back(std::make_unique<Fiber>());
  shown.push_back(nullptr);
  gifts.push_back({});
  ucontext_t& context = fibers.back()->beginning;
  getcontext(&context);
  context.uc_stack.ss_sp = fibers.back()->stack.get();
  context.uc_stack.ss_size = stack_bytes;
  makecontext(&context, live, 0);
  begin(launcher, context);
}

}  // namespace

void launch(std::int64_t blocks, int threads, const std::function<void()>& run) {
  while (static_cast<int>(fibers.size()) < threads) add_fiber();
  body = &run;
  threads_of_block = threads;
  for (block = 0; block < blocks; ++block) {
    for (int thread = 0; thread < threads; ++thread)
      fiber_of(thread).has_ended = false, gifts[static_cast<std::size_t>(thread)].last = 0;
    for (Barrier& b : barriers) b = {};
    of_all = {};
    left = threads;
    running = -1;
    change(launcher, next_place());
  }
}

void step_aside() {
  Place& mine = fiber_of(running).place;
  Place& next = next_place();
  if (&next != &mine) change(mine, next);
}

void sync_block() {
  const int before = of_all.opened;
  ++of_all.come;
  while (of_all.opened == before) step_aside();
}

void named_arrive(int barrier, int threads) { ++barriers[barrier].come, barriers[barrier].wanted = threads; }

void named_sync(int barrier, int threads) {
  const int before = barriers[barrier].opened;
  named_arrive(barrier, threads);
  while (barriers[barrier].opened == before) step_aside();
}

bool named_any(int barrier, int threads, bool one) {
  barriers[barrier].gathered |= one;
  named_sync(barrier, threads);
  return barriers[barrier].agreed;
}

// All threads of a kernel ask at the same places, so one round brings each of them to the same one.
bool any(bool one) {
  gathered |= one;
  step_aside();
  return agreed;
}

float exchange(float x, int bits) {
  fiber_of(running).given = x;
  step_aside();
  const float across = fiber_of(running ^ bits).given;
  step_aside();  // before anyone gives the next
  return across;
}

Shown::Shown(const void* mine) {
  shown[static_cast<std::size_t>(running)] = mine;
  step_aside();
}
Shown::~Shown() { step_aside(); }
const void* Shown::of(int lane) const {
  constexpr int warp = 32;
  return shown[static_cast<std::size_t>(running / warp * warp + lane)];
}

Given& given_by(int thread) { return gifts[static_cast<std::size_t>(thread)]; }

}  // namespace heed::cuda::emulated
