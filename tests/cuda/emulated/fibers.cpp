// SPDX-License-Identifier: Apache-2.0
// A context is what a thread begins in; from then on they change places by jumps, which ask nothing of the
// operating system.
#undef _FORTIFY_SOURCE  // would take a jump to another stack for a mistake
#include "emulated/fibers.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>
#include <memory>
#include <vector>

namespace heed::cuda::emulated {
namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;

struct Fiber {
  ucontext_t beginning{};
  jmp_buf place{};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  bool has_begun = false, has_ended = false;
  float given = 0;
  const void* shown = nullptr;
};

jmp_buf scheduler;
std::vector<Fiber> fibers;
int running = 0;
std::int64_t block = 0;
const std::function<void()>* body = nullptr;
bool gathered = false, agreed = false;

// Opens at the end of a round, so that the threads of a warp go on together.
struct Barrier {
  int come = 0, wanted = 0, opened = 0;
};
Barrier barriers[16];
Barrier of_all;  // of those that still run

void enter() {
  (*body)();
  fibers[static_cast<std::size_t>(running)].has_ended = true;
  _longjmp(scheduler, 1);
}

void go_on(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.has_begun) _longjmp(fiber.place, 1);
  fiber.has_begun = true;
  setcontext(&fiber.beginning);
}

// Every thread once, up to where it next waits or ends; returns whether any is left.
bool round() {
  int left = 0;
  for (running = 0; running < static_cast<int>(fibers.size()); ++running) {
    Fiber& fiber = fibers[static_cast<std::size_t>(running)];
    if (fiber.has_ended) continue;
    go_on(fiber);
    left += fiber.has_ended ? 0 : 1;
  }
  agreed = gathered, gathered = false;
  for (Barrier& b : barriers)
    if (b.come > 0 && b.come == b.wanted) b.come = 0, ++b.opened;
  if (of_all.come == left) of_all.come = 0, ++of_all.opened;
  return left > 0;
}

}  // namespace

void launch(std::int64_t blocks, int threads, const std::function<void()>& run) {
  body = &run;
  fibers.resize(static_cast<std::size_t>(threads));
  for (block = 0; block < blocks; ++block) {
    for (Fiber& fiber : fibers) {
      fiber.has_begun = fiber.has_ended = false;
      getcontext(&fiber.beginning);
      fiber.beginning.uc_stack.ss_sp = fiber.stack.get();
      fiber.beginning.uc_stack.ss_size = stack_bytes;
      makecontext(&fiber.beginning, enter, 0);
    }
    for (Barrier& b : barriers) b = {};
    of_all = {};
    while (round()) {
    }
  }
}

int current_thread() { return running; }
std::int64_t current_block() { return block; }

void step_aside() {
  if (_setjmp(fibers[static_cast<std::size_t>(running)].place) == 0) _longjmp(scheduler, 1);
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

// All threads of a kernel ask at the same places, so one round brings each of them to the same one.
bool any(bool one) {
  gathered |= one;
  step_aside();
  return agreed;
}

float exchange(float x, int bits) {
  fibers[static_cast<std::size_t>(running)].given = x;
  step_aside();
  const float across = fibers[static_cast<std::size_t>(running ^ bits)].given;
  step_aside();  // before anyone gives the next
  return across;
}

Shown::Shown(const void* mine) {
  fibers[static_cast<std::size_t>(running)].shown = mine;
  step_aside();
}
Shown::~Shown() { step_aside(); }
const void* Shown::of(int lane) const {
  constexpr int warp = 32;
  return fibers[static_cast<std::size_t>(running / warp * warp + lane)].shown;
}

}  // namespace heed::cuda::emulated
