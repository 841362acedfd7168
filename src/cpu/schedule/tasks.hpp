// SPDX-License-Identifier: Apache-2.0
// How a call becomes tasks: it is lowered, cut along the queries (prefill) or along the keys (decode) by its
// driver, and its tasks are shared out over threads, each with memory of its own.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include "cpu/backward/call.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/target.hpp"
#include "problem/problem.hpp"
#include "threads/memory.hpp"
#include "threads/pool.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {

// From a Problem to what CPU kernels read.

using problem::lower, problem::lower_if_given;

// A Call and what it points to; the Problem must outlive it.
struct LoweredCall {
  explicit LoweredCall(const Problem& p) : lowered(p), call{lowered.call} {
    call.needs_repair = &needs_repair;
  }
  LoweredCall(const Problem& p, const softmax::Scaling& scaling) : lowered(p, scaling), call{lowered.call} {
    call.needs_repair = &needs_repair;
  }
  LoweredCall(const LoweredCall&) = delete;
  LoweredCall& operator=(const LoweredCall&) = delete;

  problem::LoweredProblem lowered;
  unsigned char needs_repair = 0;  // what call.needs_repair points to
  Call call;
};

// How many tasks a call should make at least, and how many threads run them.
struct Wanted {
  std::int64_t tasks, threads;
};

// prefill/driver.cpp. Asks how many threads there are, which may change meanwhile: a call asks once. Packing
// a task's keys and values takes as long as `packing_rows` of its rows.
Wanted wanted_tasks(const Call&, double packing_rows);

// A stretch of queries of a sequence that read one KV head.
struct QueryTask {
  std::int64_t cost;
  Rows rows;
};

// Whether a runs before z. The longest tasks run first, since the last queries of a causal problem see the
// most keys. Among equals, tasks of one batch entry follow each other, or, where entries share a mask, tasks
// of the same rows of the mask.
struct RunsBefore {
  const SharedMask& mask;

  constexpr bool operator()(const QueryTask& a, const QueryTask& z) const {
    if (a.cost != z.cost) return a.cost > z.cost;
    if (const auto x = mask.owner(a.rows.batch_entry), y = mask.owner(z.rows.batch_entry); x != y)
      return x < y;
    if (a.rows.first_query != z.rows.first_query) return a.rows.first_query < z.rows.first_query;
    if (a.rows.batch_entry != z.rows.batch_entry) return a.rows.batch_entry < z.rows.batch_entry;
    return a.rows.kv_head < z.rows.kv_head;
  }
};

// A call cut along the queries, by prefill/driver.cpp: a task is a KV head and a stretch of queries.
class QueryCut {
 public:
  // Tasks have whole panels, but for the last of a sequence, whatever the group.
  QueryCut(const Call&, int panel_rows, const Wanted&);

  std::size_t count() const { return count_; }         // before the last are shortened
  std::int64_t max_rows() const { return max_rows_; }  // of a task
  std::size_t capacity() const;                        // tasks that write() may need room for

  // The tasks, in the order in which they should run; returns those that were written.
  //
  // Threads wait at the end for the tasks that began last. So the last tasks, one for each thread, are
  // halved, and the last of what this makes once more. They pack the same keys more often, unless tasks share
  // what they pack.
  std::span<QueryTask> write(std::span<QueryTask> room, const SharedMask&) const;

 private:
  template <class Emit>
  void for_each_task(const Emit&) const;
  std::int64_t queries_per_task(const Sequence&) const;
  std::size_t last_tasks() const;
  QueryTask* shorten_last(QueryTask* begin, QueryTask* end) const;

  const Call& c;
  const int panel_rows_;
  const Wanted wanted_;
  std::size_t count_ = 0;
  std::int64_t max_rows_ = 0;
};

// Tasks that read one transposed mask are a stripe (prefill/driver.cpp): a thread stays with the stripe it
// began with while that has any, since the mask is in its memory.
class Stripes {
 public:
  struct Stripe {
    std::int64_t begin = 0, end = 0;     // of its tasks
    std::int64_t queries = 0, cost = 0;  // of the first of them
    std::atomic<std::int64_t> taken = 0;

    Stripe() = default;
    Stripe(std::int64_t first, const QueryTask& task)
        : begin(first), end(first + 1), queries(task.rows.queries), cost(task.cost) {}
    std::int64_t remaining() const { return end - begin - taken.load(std::memory_order_relaxed); }
  };
  static constexpr std::int64_t none = -1;

  // Of tasks in the order in which they should run, those of a stripe side by side; `room` is for as many
  // stripes as there are tasks.
  Stripes(std::span<const QueryTask> tasks, const SharedMask&, std::span<Stripe> room);

  // The number of a task that nobody has; there must be one. It is of stripe `mine`, the one that was taken
  // from last, while that has any; otherwise `mine` becomes another.
  std::int64_t take(std::int64_t& mine) const;

 private:
  std::int64_t fullest() const;

  std::span<Stripe> stripes_;
};

// The chunks of keys that some row of a sequence may see: those of the front, then those of the band; at
// least one, whose state then says that nothing was seen.
class SeenChunks {
 public:
  SeenChunks(const Call& c, const Sequence& s) {
    const std::int64_t end = std::clamp<std::int64_t>(s.queries - 1 + s.end_offset, 0, s.key_count);
    const std::int64_t band = std::clamp<std::int64_t>(s.first_offset, 0, s.key_count) / chunk_keys;
    in_front_ = in_chunks(std::min(c.front, end));
    first_ = std::max(band, in_front_);
    count_ = std::max<std::int64_t>(1, in_front_ + std::max<std::int64_t>(0, in_chunks(end) - first_));
    if (in_front_ == 0 && first_ >= in_chunks(end)) first_ = 0;
  }
  std::int64_t count() const { return count_; }
  std::int64_t operator[](std::int64_t n) const {
    return (n < in_front_ ? n : first_ + n - in_front_) * chunk_keys;
  }

 private:
  static std::int64_t in_chunks(std::int64_t keys) { return (keys + chunk_keys - 1) / chunk_keys; }
  std::int64_t in_front_, first_, count_;
};

// How a backward pass is cut into tasks. Every way gives the same bits (O1). The ways differ in how many
// products they have, and in how many threads they keep busy.

struct GradientCut {
  std::vector<GradientPart> parts;
  // Where parts share sums, a KV head is a grid (rows, keys) of parts, which lie one after another; a head
  // that shares none is a grid of one. Times of the parts are in pairs of a row and a key, about.
  std::vector<threads::Grid> grids;
  std::vector<float> times;
};
GradientCut cut_gradients(const GradientCall&);  // backward/driver.cpp

// How tasks reach the threads, and when a call is worth more than one.

// At most: enough that the last task to end does not keep the other threads idle.
constexpr std::int64_t tasks_per_thread = 4;
// Below this many multiplications waking a thread (some 10 us) costs more than it saves.
constexpr double worth_sharing = 1e5;

inline double products(const Call& c) {
  return static_cast<double>(c.batch * c.heads) * static_cast<double>(c.queries) *
         static_cast<double>(c.keys) * static_cast<double>(c.dim + c.value_dim);
}

template <class Body>
void share_out(std::int64_t tasks, double multiplications, const Body& body) {
  const auto one = [&](std::size_t n) { body(static_cast<std::int64_t>(n)); };
  if (multiplications >= worth_sharing) return threads::parallel_for(static_cast<std::size_t>(tasks), one);
  for (std::int64_t n = 0; n < tasks; ++n) body(n);
}

// Where tasks are many and small, a thread takes a run of neighbours at a time, which lie side by side in
// memory.
constexpr std::int64_t runs_per_thread = 64;
constexpr double max_in_run = 2e6;  // multiplications

template <class Body>
void share_out_runs(std::int64_t tasks, double multiplications, const Body& body) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  const double each = std::max(1.0, multiplications / static_cast<double>(tasks));
  const auto small = static_cast<std::int64_t>(max_in_run / each);
  const std::int64_t run = std::max<std::int64_t>(1, std::min(small, tasks / (threads * runs_per_thread)));
  share_out((tasks + run - 1) / run, multiplications, [&](std::int64_t n) {
    for (std::int64_t i = n * run; i < std::min((n + 1) * run, tasks); ++i) body(i);
  });
}

// How many tasks may run at once. A single task needs no answer from the pool.
inline std::size_t slots_for(std::size_t tasks) {
  return tasks == 1 ? 1 : std::min(tasks, threads::concurrency());
}

// As many floats for so many bytes that a 64-byte line begins after them.
constexpr std::size_t line_floats = 16;
constexpr std::size_t floats_in_lines(std::size_t bytes) { return (bytes + 63) / 64 * line_floats; }

// What tasks need: allocated before any of them starts, so that a task never allocates, and shared by as many
// as can run at once.
class Scratch {
 public:
  // One slot for each task that may run at once, and bytes in front of them for all. Throws std::bad_alloc
  // before anything has run.
  Scratch(std::size_t slots, std::int64_t floats_per_slot, std::size_t front_bytes = 0)
      : slots_(slots),
        stride_(floats_in_lines(static_cast<std::size_t>(floats_per_slot) * sizeof(float)) + line_floats),
        memory_(threads::take_memory(floats_in_lines(front_bytes) + slots_ * stride_)),
        slots_begin_(memory_.get() + floats_in_lines(front_bytes)) {
    for (std::size_t slot = 0; slot < slots_; ++slot) new (&taken(slot)) std::atomic<bool>(false);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  class Lease {
   public:
    explicit Lease(Scratch& scratch) : scratch_(scratch), slot_(scratch.take()) {}
    ~Lease() { scratch_.taken(slot_).store(false, std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    std::size_t slot() const { return slot_; }
    float* floats() const { return scratch_.slots_begin_ + slot_ * scratch_.stride_; }

   private:
    Scratch& scratch_;
    std::size_t slot_;
  };

  template <class T>
  T* front() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  // The slot that this thread had last is tried first: the others have theirs, and what a task left there is
  // in this core's cache.
  static inline constinit thread_local std::size_t last_slot_ = 0;

  std::size_t take() {
    for (;;) {
      for (std::size_t n = 0; n < slots_; ++n) {
        const std::size_t slot = (last_slot_ + n) % slots_;
        if (!taken(slot).exchange(true, std::memory_order_acquire)) return last_slot_ = slot;
      }
      std::this_thread::yield();  // a foreign executor may run more tasks at once than it said
    }
  }

  // Behind each slot's floats, on a line of its own: one that all threads wrote would travel from core to
  // core.
  std::atomic<bool>& taken(std::size_t slot) const {
    return *reinterpret_cast<std::atomic<bool>*>(slots_begin_ + (slot + 1) * stride_ - line_floats);
  }

  std::size_t slots_, stride_;
  threads::ReusedMemory memory_;  // what is in front, then the slots
  float* slots_begin_;
};

// What the memory of a call's tasks holds. A driver names each region once; TaskMemory then says where it
// lies. Every region begins on a 64-byte line.
class Layout {
 public:
  // Of the call: all tasks see it.
  template <class T>
  struct Shared {
    std::size_t first = 0, count = 0;  // floats from the front; elements
  };
  // Of a slot: a task has it for itself.
  template <class T>
  struct OfSlot {
    std::size_t first = 0;  // floats from the front of the slot
  };

  template <class T>
  Shared<T> share(std::size_t count) {
    static_assert(alignof(T) <= line_bytes);
    return {grow<T>(shared_floats_, count), count};
  }
  template <class T>
  OfSlot<T> give_each_slot(std::int64_t count) {
    static_assert(alignof(T) <= line_bytes);
    return {grow<T>(slot_floats_, static_cast<std::size_t>(count))};
  }

 private:
  friend class TaskMemory;
  static constexpr std::size_t line_bytes = line_floats * sizeof(float);

  template <class T>
  static std::size_t grow(std::size_t& floats, std::size_t count) {
    const std::size_t first = floats;
    floats += floats_in_lines(count * sizeof(T));
    return first;
  }

  std::size_t shared_floats_ = 0, slot_floats_ = 0;
};

// The memory of a call's tasks, in one allocation: what they share, and a slot for each that runs at once.
// Nothing in it is initialised.
class TaskMemory {
 public:
  TaskMemory(std::size_t slots, const Layout& layout)
      : scratch_(slots, static_cast<std::int64_t>(layout.slot_floats_),
                 layout.shared_floats_ * sizeof(float)) {}

  template <class T>
  std::span<T> operator[](const Layout::Shared<T>& region) const {
    return {reinterpret_cast<T*>(scratch_.front<float>() + region.first), region.count};
  }

  // A slot, for as long as this lives: one for each task that runs.
  class Slot {
   public:
    explicit Slot(TaskMemory& memory) : lease_(memory.scratch_) {}
    std::size_t number() const { return lease_.slot(); }
    template <class T>
    T* operator[](const Layout::OfSlot<T>& region) const {
      return reinterpret_cast<T*>(lease_.floats() + region.first);
    }

   private:
    Scratch::Lease lease_;
  };

 private:
  Scratch scratch_;
};

}  // namespace heed::cpu
