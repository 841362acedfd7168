// SPDX-License-Identifier: Apache-2.0
// See limits.hpp.
#include "bench/limits.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/loops.hpp"
#include "heed/threads.hpp"
#include "stopwatch.hpp"
#include "system.hpp"

namespace heed::tool {
namespace {

constexpr std::size_t mebibyte = 1 << 20;
constexpr std::size_t bursts = 16;
constexpr double arithmetic_burst_seconds = 3e-3, step_seconds = 10e-6;
constexpr std::size_t cache_burst_bytes = 64 * mebibyte;

using Clock = std::chrono::steady_clock;

// What each of a burst's threads does: `prepare` before the clock starts, `work` under it.
struct Burst {
  std::function<void(std::size_t thread)> prepare;
  std::function<void(std::size_t thread, std::size_t burst)> work;
};

// Its threads begin where heed's are, if there are any, so that a case and what the machine could do
// meanwhile are of the same processors.
double seconds_of_burst(std::size_t threads, const Burst& burst, std::size_t number) {
  const std::vector<int> places = processors_of_others();
  std::atomic<std::size_t> ready = 0;
  std::vector<Clock::time_point> starts(threads), ends(threads);
  const auto member = [&](std::size_t thread) {
    if (thread > 0 && thread <= places.size()) begin_on(places[thread - 1]);
    burst.prepare(thread);
    ++ready;
    while (ready < threads) std::this_thread::yield();
    starts[thread] = Clock::now();
    burst.work(thread, number);
    ends[thread] = Clock::now();
  };
  std::vector<std::thread> others;
  for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(member, thread);
  member(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) -
                                       *std::min_element(starts.begin(), starts.end()))
      .count();
}

double best_seconds(std::size_t threads, const Burst& burst) {
  double best = seconds_of_burst(threads, burst, 0);
  for (std::size_t number = 1; number < bursts; ++number)
    best = std::min(best, seconds_of_burst(threads, burst, number));
  return best;
}

// All that the threads do until the first of them has worked for so long counts: on a machine that others use
// too, some get further than others, as they do through a case's tasks.
double operations_per_second(const ArithmeticLoop& loop, std::int64_t rounds, std::size_t threads,
                             double seconds) {
  std::atomic<std::int64_t> steps = 0;
  std::atomic<bool> is_over = false;
  const auto work = [&](std::size_t, std::size_t) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::int64_t own = 0;
    for (; !is_over && Clock::now() < end; ++own) loop.run(rounds);
    is_over = true;
    steps += own;
  };
  seconds_of_burst(threads, {.prepare = [](std::size_t) {}, .work = work}, 0);
  return static_cast<double>(steps * rounds) * loop.operations_per_round / seconds;
}

Rate rate_of(const ArithmeticLoop& loop, std::size_t threads) {
  std::int64_t rounds = 16;
  while (seconds_of([&] { loop.run(rounds); }) < step_seconds) rounds *= 2;
  const auto now = [=](std::size_t with, double seconds) {
    return operations_per_second(loop, rounds, with, seconds);
  };
  Rate rate{.instruction = loop.instruction, .now = [=](double seconds) { return now(threads, seconds); }};
  for (std::size_t number = 0; number < bursts; ++number) {
    rate.one_thread = std::max(rate.one_thread, now(1, arithmetic_burst_seconds));
    rate.all_threads = std::max(rate.all_threads, now(threads, arithmetic_burst_seconds));
  }
  return rate;
}

std::optional<Rate> rate_of(const std::optional<ArithmeticLoop>& loop, std::size_t threads) {
  if (!loop) return {};
  return rate_of(*loop, threads);
}

// Memory of each thread's own. Every page is written once, or all of them would be the same page of zeros.
std::vector<std::unique_ptr<std::byte[]>> touched_buffers(std::size_t threads, std::size_t bytes) {
  std::vector<std::unique_ptr<std::byte[]>> buffers(threads);
  for (auto& buffer : buffers) {
    buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memset(buffer.get(), 1, bytes);
  }
  return buffers;
}

Rate rate_of(const Burst& burst, std::size_t bytes, std::size_t threads) {
  const auto amount = static_cast<double>(bytes);
  return {.one_thread = amount / best_seconds(1, burst),
          .all_threads = amount * static_cast<double>(threads) / best_seconds(threads, burst)};
}

// Each thread reads its `part` bytes again and again.
Rate cached_rate(std::size_t part, std::size_t threads) {
  part = part / read_step * read_step;
  const std::size_t passes = std::max<std::size_t>(1, cache_burst_bytes / part);
  const auto buffers = touched_buffers(threads, part);
  const ReadLoop read = read_loop();
  const Burst burst{.prepare = [&](std::size_t thread) { read(buffers[thread].get(), part); },
                    .work =
                        [&](std::size_t thread, std::size_t) {
                          for (std::size_t pass = 0; pass < passes; ++pass) read(buffers[thread].get(), part);
                        }};
  return rate_of(burst, part * passes, threads);
}

// Each burst reads the next slice, and the first comes again only when the caches have long forgotten it.
Rate uncached_rate(std::size_t part, std::size_t threads) {
  constexpr std::size_t slices = 8;
  const std::size_t slice = std::max(part / slices / read_step, std::size_t{1}) * read_step;
  const auto buffers = touched_buffers(threads, slice * slices);
  const ReadLoop read = read_loop();
  const Burst burst{
      .prepare = [](std::size_t) {},
      .work = [&](std::size_t thread,
                  std::size_t number) { read(buffers[thread].get() + number % slices * slice, slice); }};
  return rate_of(burst, slice, threads);
}

std::optional<Rate> l2_rate(const Caches& caches, std::size_t threads) {
  if (caches.l2 == 0) return {};
  return cached_rate(caches.l2 / 2, threads);
}

// The parts must miss the L2 caches and yet leave room: L3 is shared, often with other machines' guests.
std::optional<Rate> l3_rate(const Caches& caches, std::size_t threads) {
  const std::size_t part = std::max(caches.l3 / 4 / threads, 2 * caches.l2);
  if (part == 0 || part * threads > caches.l3 / 4 * 3) return {};
  return cached_rate(part, threads);
}

Rate dram_rate(const Caches& caches, std::size_t threads) {
  const std::size_t wanted = std::max(256 * mebibyte, 4 * caches.l3);
  const std::size_t total = std::min(wanted, std::max(physical_memory_bytes() / 8, mebibyte * threads));
  return uncached_rate(total / threads, threads);
}

}  // namespace

Limits measure_limits() {
  const auto threads = static_cast<std::size_t>(num_threads());
  const Caches caches = find_caches();
  return {.threads = num_threads(),
          .caches = caches,
          .fp32 = rate_of(fp32_loop(), threads),
          .bf16 = rate_of(bf16_loop(), threads),
          .int8 = rate_of(int8_loop(), threads),
          .l2 = l2_rate(caches, threads),
          .l3 = l3_rate(caches, threads),
          .dram = dram_rate(caches, threads)};
}

}  // namespace heed::tool
