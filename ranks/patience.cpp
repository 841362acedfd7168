// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <utility>

#include "heed/group.hpp"
#include "threads/pool.hpp"

namespace HEED_NAMESPACE {

using namespace std::chrono_literals;

namespace {

// To ask takes some 10 us.
unsigned processors() {
  static const unsigned once = std::thread::hardware_concurrency();
  return once;
}

}  // namespace

Patience::Patience(int ranks_here)
    : looking_(static_cast<unsigned>(ranks_here) <= processors() ? 100us : 0us) {}

// Whoever has not waited for a millisecond has computed since.
void Patience::wait() {
  const auto now = std::chrono::steady_clock::now();
  if (std::exchange(begins_, false) || now - waited_ > 1ms) waiting_since_ = now;
  waited_ = now;
  const auto so_far = now - waiting_since_;
  if (so_far < looking_)
    threads::relax();
  else if (so_far < 2ms)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(50us);
}

}  // namespace HEED_NAMESPACE
