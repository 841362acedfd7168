// SPDX-License-Identifier: Apache-2.0
// Keys are attended to in the chunks that every row folds (call.hpp), where they lie; those of a chunk that
// has begun and not ended are held back in a copy. Tasks are cut once, by the queries, and each keeps the
// state of its rows.
#include "cpu/stream.hpp"

#include <algorithm>
#include <vector>

#include "cpu/copy.hpp"
#include "cpu/cut.hpp"
#include "cpu/lower.hpp"
#include "cpu/tasks.hpp"
#include "threads/scratch.hpp"

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
class HeldRows {
 public:
  HeldRows(const View& like, std::int64_t batch) {
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
        problem_(problem),
        says_keys_(problem.keys != unknown_keys),
        held_keys_(problem.inputs.k, problem.batch),
        held_values_(problem.inputs.v, problem.batch) {
    const LoweredCall lowered(problem_);
    const Call& c = lowered.call;
    if (c.heads > 0) cut(c);
    for (const QueryTask& task : tasks_) {
      kept_at_.push_back(kept_floats_);
      const std::int64_t rows = task.rows.queries * c.group();
      kept_floats_ += target.stream_floats(c, rows);
      max_rows_ = std::max(max_rows_, rows);
    }
    kept_ = threads::take_memory(static_cast<std::size_t>(kept_floats_));
    attend(held_keys_.first(0), held_values_.first(0), {0, 0, true});  // begins the states
  }

  void add(const View& k, const View& v) override {
    const std::int64_t there = k.shape.length, lacking = chunk_keys - held_;
    std::int64_t taken = 0;
    if (held_ > 0) {
      taken = std::min(lacking, there);
      hold(k, v, 0, taken);
      if (held_ == chunk_keys) attend_held();
    }
    if (const std::int64_t whole = (there - taken) / chunk_keys * chunk_keys; whole > 0) {
      attend(rows_of(k, taken, whole), rows_of(v, taken, whole), {done_, done_ + whole, false});
      done_ += whole, taken += whole;
    }
    if (taken < there) hold(k, v, taken, there - taken);
  }

  bool finish() override {
    attend_held();
    const LoweredCall lowered(problem_);
    for_each_task(lowered.call, 1, [&](const Rows& rows, float* scratch, float* kept) {
      target_.stream_finish(lowered.call, rows, scratch, kept);
    });
    return lowered.needs_reference != 0;
  }

 private:
  // All threads meet at the end of every stretch. Of 220 ms for 16384 tokens a thread waited 22 to 33 there,
  // and 11 with its last task halved twice (8 processes of 2 threads, Xeon, November 2026).
  void cut(const Call& c) {
    const Wanted wanted = wanted_tasks(c, target_.packing_rows);
    cut_along_queries(c, target_.panel_rows, wanted, [&](const QueryTask& task) { tasks_.push_back(task); });
    std::sort(tasks_.begin(), tasks_.end(), RunsBefore{SharedMask{}});
    const std::size_t count = tasks_.size();
    tasks_.resize(count + max_shortened(wanted));
    tasks_.resize(shorten_last({tasks_.data(), count}, c, target_.panel_rows, wanted));
  }

  void hold(const View& k, const View& v, std::int64_t from, std::int64_t count) {
    held_keys_.copy(rows_of(k, from, count), held_);
    held_values_.copy(rows_of(v, from, count), held_);
    held_ += count;
  }

  void attend_held() {
    attend(held_keys_.first(held_), held_values_.first(held_), {done_, done_ + held_, false});
    done_ += std::exchange(held_, 0);
  }

  // k and v begin with key range.begin.
  void attend(const View& k, const View& v, const ChunkRange& range) {
    problem_.inputs.k = k, problem_.inputs.v = v;
    for (Sequence& s : problem_.sequences) {
      s.first_key = -range.begin;
      if (!says_keys_) s.keys = s.key_count = range.end;
    }
    const LoweredCall lowered(problem_);
    for_each_task(lowered.call, range.end - range.begin, [&](const Rows& rows, float* scratch, float* kept) {
      target_.stream(lowered.call, rows, range, scratch, kept);
    });
  }

  template <class Do>
  void for_each_task(const Call& c, std::int64_t keys, const Do& task) {
    if (tasks_.empty()) return;
    threads::Scratch scratch(std::min(tasks_.size(), threads::concurrency()),
                             target_.prefill_floats(c, max_rows_));
    const double products =
        static_cast<double>(problem_.inputs.q.shape.elements()) * static_cast<double>(2 * keys);
    share_out(std::ssize(tasks_), products, [&](std::int64_t n) {
      const threads::Scratch::Lease lease(scratch);
      const auto at = static_cast<std::size_t>(n);
      task(tasks_[at].rows, lease.floats(), kept_.get() + kept_at_[at]);
    });
  }

  const Target& target_;
  Problem problem_;  // its k, v and sequences are those of the present stretch
  const bool says_keys_;
  std::vector<QueryTask> tasks_;
  std::vector<std::int64_t> kept_at_;
  std::int64_t kept_floats_ = 0, max_rows_ = 0;
  threads::ReusedMemory kept_;
  HeldRows held_keys_, held_values_;
  std::int64_t held_ = 0, done_ = 0;  // keys that wait, and those in the states
};

}  // namespace

std::unique_ptr<Stream> begin_stream(const Target& target, const Problem& problem) {
  return std::make_unique<ChunkStream>(target, problem);
}

}  // namespace heed::cpu
