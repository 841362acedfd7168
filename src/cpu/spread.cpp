// SPDX-License-Identifier: Apache-2.0
// Decode cut along the keys (run.cpp), with each chunk on the rank that has it. A rank sees its cache through
// a table of pages of the whole sequence, in which the pages of others are not there: kernels go on speaking
// of all keys, and the states are those that one process would merge.
#include "cpu/spread.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/cut.hpp"
#include "cpu/lower.hpp"
#include "cpu/tasks.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

static_assert(Spread::chunk_tokens == chunk_keys);

class ChunkSpread final : public SpreadDecode {
 public:
  ChunkSpread(const Target& target, const Problem& problem, const Spread& spread)
      : target_(target), problem_(problem), spread_(spread), lowered_(problem) {
    place_pages();
    const Call& c = lowered_.call;
    if (c.heads > 0) cut_along_keys(c, [&](const KeyTask& task) { tasks_.push_back(task); });
    state_floats_ = tasks_.empty() ? 0 : target.partial_floats(c);
  }

  std::int64_t floats_of(int rank) const override {
    return state_floats_ * std::ranges::count_if(tasks_, [&](const KeyTask& t) { return owner(t) == rank; });
  }

  void attend(float* states) override {
    std::vector<const KeyTask*> own;
    for (const KeyTask& task : tasks_)
      if (owner(task) == spread_.rank) own.push_back(&task);
    for_each(own, [&](std::size_t n, float* scratch) {
      target_.decode(lowered_.call, own[n]->rows, own[n]->chunk, scratch,
                     states + static_cast<std::int64_t>(n) * state_floats_);
    });
  }

  bool finish(std::span<const float* const> states) override {
    std::vector<const float*> next(states.begin(), states.end());
    std::vector<float> all(tasks_.size() * static_cast<std::size_t>(state_floats_));
    float* to = all.data();
    std::vector<const KeyTask*> first;  // of the rows that share a KV head
    for (const KeyTask& task : tasks_) {
      const float*& from = next[static_cast<std::size_t>(owner(task))];
      std::memcpy(to, from, static_cast<std::size_t>(state_floats_) * sizeof(float));
      from += state_floats_, to += state_floats_;
      if (task.chunks > 0) first.push_back(&task);
    }
    for_each(first, [&](std::size_t n, float* scratch) {
      target_.decode_finish(lowered_.call, first[n]->rows, first[n]->chunks, scratch,
                            all.data() + (first[n] - tasks_.data()) * state_floats_);
    });
    return lowered_.left_range != 0;
  }

 private:
  int owner(const KeyTask& task) const { return static_cast<int>(task.chunk / chunk_keys % spread_.ranks); }

  // The tables of whole sequences: page n holds tokens [n * page_size, (n + 1) * page_size), and a page lies
  // in one chunk.
  void place_pages() {
    const std::int64_t size = lowered_.call.layout.page_size, in_chunk = chunk_keys / size;
    tables_.resize(problem_.sequences.size());
    for (std::size_t b = 0; b < tables_.size(); ++b) {
      const std::int64_t pages = (problem_.sequences[b].keys + size - 1) / size;
      for (std::int64_t page = 0; page < pages; ++page) {
        const std::int64_t chunk = page / in_chunk;
        const bool is_own = chunk % spread_.ranks == spread_.rank;
        tables_[b].push_back(
            is_own ? lowered_.cached[b].table[chunk / spread_.ranks * in_chunk + page % in_chunk] : nullptr);
      }
      lowered_.cached[b] = {tables_[b].data(), problem_.sequences[b].keys};
    }
  }

  template <class Do>
  void for_each(const std::vector<const KeyTask*>& tasks, const Do& task) {
    if (tasks.empty()) return;
    const Call& c = lowered_.call;
    threads::Scratch scratch(std::min(tasks.size(), threads::concurrency()), target_.decode_floats(c));
    share_out(std::ssize(tasks), products(c) / spread_.ranks, [&](std::int64_t n) {
      const threads::Scratch::Lease lease(scratch);
      task(static_cast<std::size_t>(n), lease.floats());
    });
  }

  const Target& target_;
  const Problem& problem_;
  const Spread spread_;
  LoweredCall lowered_;
  std::vector<std::vector<const unsigned char*>> tables_;
  std::vector<KeyTask> tasks_;  // of all ranks, those of one sequence and KV head one after another
  std::int64_t state_floats_ = 0;
};

}  // namespace

std::unique_ptr<SpreadDecode> begin_spread(const Target& target, const Problem& problem,
                                           const Spread& spread) {
  return std::make_unique<ChunkSpread>(target, problem, spread);
}

}  // namespace heed::cpu
