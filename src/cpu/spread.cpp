// SPDX-License-Identifier: Apache-2.0
// Decode cut along the keys (run.cpp), with each chunk on the rank that has it. A rank sees its cache through
// a table of pages of the whole sequence, in which the pages of others are not there: kernels go on speaking
// of all keys, and the states are those that one process would merge. What travels is the real part of them.
#include "cpu/spread.hpp"

#include <algorithm>
#include <utility>
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
    floats_of_.resize(static_cast<std::size_t>(spread.ranks));
    if (c.heads > 0) cut_along_keys(c, [&](const KeyTask& task) { tasks_.push_back(task); });
    if (tasks_.empty()) return;
    layout_ = target.partial(c);
    rows_ = c.group() * c.queries;
    state_floats_ = rows_ * (2 + c.value_dim);
    for (const KeyTask& task : tasks_) {
      owners_.push_back(static_cast<std::size_t>(task.chunk / chunk_keys % spread.ranks));
      floats_of_[owners_.back()] += state_floats_;
    }
  }

  std::int64_t floats_of(int rank) const override { return floats_of_[static_cast<std::size_t>(rank)]; }

  void attend(float* states) override {
    std::vector<const KeyTask*> own;
    for (std::size_t n = 0; n < tasks_.size(); ++n)
      if (owners_[n] == static_cast<std::size_t>(spread_.rank)) own.push_back(&tasks_[n]);
    for_each(own, 1, products(lowered_.call) / spread_.ranks,
             [&](std::size_t n, float* scratch, float* partial) {
               target_.decode(lowered_.call, own[n]->rows, own[n]->chunk, scratch, partial);
               pack(partial, states + static_cast<std::int64_t>(n) * state_floats_);
             });
  }

  bool finish(std::span<const float* const> states) override {
    std::vector<const float*> next(states.begin(), states.end()), of_task;
    std::vector<const KeyTask*> first;  // of the rows that share a KV head
    std::int64_t most_chunks = 0;
    for (std::size_t n = 0; n < tasks_.size(); ++n) {
      of_task.push_back(std::exchange(next[owners_[n]], next[owners_[n]] + state_floats_));
      if (tasks_[n].chunks > 0) first.push_back(&tasks_[n]);
      most_chunks = std::max(most_chunks, tasks_[n].chunks);
    }
    // Every number of a state, as kernels have it, is written and multiplied.
    const double numbers = static_cast<double>(std::ssize(tasks_) * layout_.floats());
    for_each(first, most_chunks, numbers, [&](std::size_t n, float* scratch, float* partials) {
      const KeyTask& task = *first[n];
      const float* const* from = of_task.data() + (&task - tasks_.data());
      for (std::int64_t chunk = 0; chunk < task.chunks; ++chunk)
        unpack(from[chunk], partials + chunk * layout_.floats());
      target_.decode_finish(lowered_.call, task.rows, task.chunks, scratch, partials);
    });
    return lowered_.left_range != 0;
  }

 private:
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

  // With room for so many states, as kernels have them, beside the scratch of each task.
  template <class Do>
  void for_each(const std::vector<const KeyTask*>& tasks, std::int64_t states, double multiplications,
                const Do& task) {
    if (tasks.empty()) return;
    const Call& c = lowered_.call;
    const std::int64_t own = target_.decode_floats(c);
    threads::Scratch scratch(std::min(tasks.size(), threads::concurrency()), own + states * layout_.floats());
    share_out(std::ssize(tasks), multiplications, [&](std::int64_t n) {
      const threads::Scratch::Lease lease(scratch);
      task(static_cast<std::size_t>(n), lease.floats(), lease.floats() + own);
    });
  }

  // The real rows of a state: maxima, sums, then the values of each.
  void pack(const float* partial, float* packed) const {
    const std::int64_t dims = lowered_.call.value_dim;
    packed = std::copy_n(partial, rows_, packed);
    packed = std::copy_n(partial + layout_.rows, rows_, packed);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const float* from = partial + values_of(r);
      for (std::int64_t d = 0; d < dims; ++d, from += layout_.panel) *packed++ = *from;
    }
  }

  // Rows and dims that are not real are 0: nobody reads what becomes of them.
  void unpack(const float* packed, float* partial) const {
    const std::int64_t dims = lowered_.call.value_dim;
    const bool is_full = layout_.panel == 1 && layout_.dims == dims;  // where rows are real
    std::fill_n(partial, is_full ? 2 * layout_.rows : layout_.floats(), 0.0f);
    std::copy_n(packed, rows_, partial);
    std::copy_n(packed + rows_, rows_, partial + layout_.rows);
    packed += 2 * rows_;
    for (std::int64_t r = 0; r < rows_; ++r) {
      float* to = partial + values_of(r);
      for (std::int64_t d = 0; d < dims; ++d, to += layout_.panel) *to = *packed++;
    }
  }

  // Where the values of row r begin, in a state.
  std::int64_t values_of(std::int64_t r) const {
    return 2 * layout_.rows + r / layout_.panel * layout_.panel * layout_.dims + r % layout_.panel;
  }

  const Target& target_;
  const Problem& problem_;
  const Spread spread_;
  LoweredCall lowered_;
  std::vector<std::vector<const unsigned char*>> tables_;
  std::vector<KeyTask> tasks_;           // of all ranks, those of one sequence and KV head one after another
  std::vector<std::size_t> owners_;      // of each
  std::vector<std::int64_t> floats_of_;  // of each rank's states
  PartialLayout layout_{};
  std::int64_t rows_ = 0, state_floats_ = 0;  // that are real, and what of a state travels
};

}  // namespace

std::unique_ptr<SpreadDecode> begin_spread(const Target& target, const Problem& problem,
                                           const Spread& spread) {
  return std::make_unique<ChunkSpread>(target, problem, spread);
}

}  // namespace heed::cpu
