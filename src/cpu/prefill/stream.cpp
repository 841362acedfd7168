// SPDX-License-Identifier: Apache-2.0
// Prefill of keys that arrive one stretch at a time. Whole chunks of keys (call.hpp) are attended to where
// they lie. The keys of an unfinished chunk wait in a copy until the chunk is whole or the stream ends. Tasks
// are cut once, by the queries, and each has a state of its rows from one stretch to the next.
#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

template <class AnyView>
AnyView rows_of(const AnyView& x, std::int64_t first, std::int64_t count) {
  const std::int64_t bytes = x.dtype == DType::f32 ? 4 : 2;
  AnyView part = x;
  if (first > 0) {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(x.data)>>, const char, char>;
    part.data = static_cast<Byte*>(x.data) + first * x.stride.length * bytes;
  }
  part.shape.length = count;
  return part;
}

// Up to a chunk of keys, or of values.
class WaitingRows {
 public:
  WaitingRows(const View& like, std::int64_t batch) {
    const Shape shape{batch, like.shape.heads, chunk_keys, like.shape.dim};
    const std::int64_t per_float = like.dtype == DType::f32 ? 1 : 2;
    memory_ = threads::take_memory(static_cast<std::size_t>((shape.elements() + 1) / per_float));
    rows_ = {static_cast<void*>(memory_.get()), shape, like.dtype};
  }
  void copy(const View& from, std::int64_t at) const {
    cpu::copy(from, rows_of(rows_, at, from.shape.length));
  }
  View first(std::int64_t count) const { return rows_of(View(rows_), 0, count); }

 private:
  threads::ReusedMemory memory_;
  MutableView rows_;
};

class ChunkStream final : public Stream {
 public:
  ChunkStream(const Target& target, const Problem& problem)
      : target_(target),
        lowered_(problem),
        sequences_(problem.sequences.begin(), problem.sequences.end()),
        knows_keys_(problem.keys != unknown_keys),
        waiting_keys_(problem.inputs.k, problem.batch),
        waiting_values_(problem.inputs.v, problem.batch) {
    lowered_.call.sequences = sequences_.data();
    const Call& c = lowered_.call;
    if (c.heads > 0) cut(c);
    queries_ = static_cast<double>(problem.inputs.q.shape.elements());
    std::int64_t floats = 0;
    for (const QueryTask& task : tasks_) {
      state_at_.push_back(floats);
      floats += target.stream_floats(c, task.rows.queries * c.group());
    }
    states_ = threads::take_memory(static_cast<std::size_t>(floats));
    attend(waiting_keys_.first(0), waiting_values_.first(0), {0, 0, true});  // begins the states
  }

  void add(const View& k, const View& v) override {
    const std::int64_t added = k.shape.length;
    std::int64_t taken = 0;
    if (waiting_ > 0) {
      taken = std::min(chunk_keys - waiting_, added);
      wait(k, v, 0, taken);
      if (waiting_ == chunk_keys) attend_waiting();
    }
    if (const std::int64_t whole = (added - taken) / chunk_keys * chunk_keys; whole > 0) {
      attend(rows_of(k, taken, whole), rows_of(v, taken, whole), {done_, done_ + whole, false});
      done_ += whole, taken += whole;
    }
    if (taken < added) wait(k, v, taken, added - taken);
  }

  bool finish() override {
    attend_waiting();
    lowered_.needs_repair = 0;
    for_each_task(1, [&](const Rows& rows, float* scratch, float* state) {
      target_.stream_finish(lowered_.call, rows, scratch, state);
    });
    return lowered_.needs_repair != 0;
  }

 private:
  // All threads meet at the end of every stretch. Of 220 ms for 16384 tokens a thread waited 22 to 33 there,
  // and 11 with its last task halved twice (8 processes of 2 threads, Xeon, November 2026).
  void cut(const Call& c) {
    const QueryCut cut(c, target_.panel_rows, wanted_tasks(c, target_.packing_rows));
    max_rows_ = cut.max_rows();
    tasks_.resize(cut.capacity());
    tasks_.resize(cut.write(tasks_, SharedMask{}).size());
  }

  void wait(const View& k, const View& v, std::int64_t from, std::int64_t count) {
    waiting_keys_.copy(rows_of(k, from, count), waiting_);
    waiting_values_.copy(rows_of(v, from, count), waiting_);
    waiting_ += count;
  }

  void attend_waiting() {
    attend(waiting_keys_.first(waiting_), waiting_values_.first(waiting_), {done_, done_ + waiting_, false});
    done_ += std::exchange(waiting_, 0);
  }

  // k and v begin with key range.begin.
  void attend(const View& k, const View& v, const ChunkRange& range) {
    lowered_.call.k = lower(k), lowered_.call.v = lower(v);
    for (Sequence& s : sequences_) {
      s.first_key = -range.begin;
      if (!knows_keys_) s.keys = s.key_count = range.end;
    }
    for_each_task(range.end - range.begin, [&](const Rows& rows, float* scratch, float* state) {
      target_.stream(lowered_.call, rows, range, scratch, state);
    });
  }

  template <class Do>
  void for_each_task(std::int64_t keys, const Do& task) {
    if (tasks_.empty()) return;
    Layout layout;
    const auto scratch = layout.give_each_slot<float>(target_.prefill_floats(lowered_.call, max_rows_));
    TaskMemory memory(slots_for(tasks_.size()), layout);
    const double products = queries_ * static_cast<double>(2 * keys);
    share_out(std::ssize(tasks_), products, [&](std::int64_t n) {
      const TaskMemory::Slot slot(memory);
      const auto at = static_cast<std::size_t>(n);
      task(tasks_[at].rows, slot[scratch], states_.get() + state_at_[at]);
    });
  }

  const Target& target_;
  LoweredCall lowered_;              // its k, v and sequences are those of the present stretch
  std::vector<Sequence> sequences_;  // what lowered_.call points to
  double queries_ = 0;               // elements of q
  const bool knows_keys_;
  std::vector<QueryTask> tasks_;
  std::int64_t max_rows_ = 0;           // of a task
  std::vector<std::int64_t> state_at_;  // of each task, in floats
  threads::ReusedMemory states_;
  WaitingRows waiting_keys_, waiting_values_;
  std::int64_t waiting_ = 0, done_ = 0;  // keys that wait, and those in the states
};

}  // namespace

std::unique_ptr<Stream> begin_stream(const Target& target, const Problem& problem) {
  return std::make_unique<ChunkStream>(target, problem);
}

}  // namespace heed::cpu
