// SPDX-License-Identifier: Apache-2.0
// Decode cut along the keys (driver.cpp), with each chunk on the rank that has it. A rank sees its cache
// through a table of pages of the whole sequence, in which the pages of other ranks are null. So kernels
// number keys as one process would, and their states are those that it would merge, in its order. Rows that
// share a KV head are merged by one rank: their states travel to that rank, and merged from there to all,
// without the padding of vectors.
#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

static_assert(Spread::chunk_tokens == chunk_keys);

class ChunkSpread final : public SpreadDecode {
 public:
  ChunkSpread(const Target& target, const Problem& problem, const Spread& spread)
      : target_(target), problem_(problem), spread_(spread), lowered_(problem) {
    place_pages();
    const Call& c = lowered_.call;
    held_.resize(static_cast<std::size_t>(c.batch * spread.ranks));
    firsts_.resize(static_cast<std::size_t>(spread.ranks) + 1);
    if (c.heads == 0) return;
    layout_ = target.partial(c);
    rows_ = c.group() * c.queries;
    state_floats_ = rows_ * (2 + c.value_dim);
    for (std::int64_t b = 0; b < c.batch; ++b)
      if (c.sequences[b].queries > 0) cut(b);
    share_heads();
  }

  std::int64_t floats(int of, int merged_by) const override {
    return held_for(of, merged_by) * state_floats_;
  }
  std::int64_t floats_merged_by(int rank) const override {
    return std::ssize(merged_by(rank)) * state_floats_;
  }

  void attend(std::span<float* const> states) override {
    for_each(std::ssize(own_), 1, products(lowered_.call) / spread_.ranks,
             [&](std::size_t n, float* scratch, float* partial) {
               const OwnChunk& own = own_[n];
               target_.decode(lowered_.call, own.rows, own.chunk, scratch, partial);
               pack(partial, states[own.merged_by] + own.place * state_floats_);
             });
  }

  void merge(std::span<const float* const> states, float* merged) override {
    const std::span<const Rows> mine = merged_by(spread_.rank);
    std::vector<const float*> next(states.begin(), states.end());  // of every rank, for each of mine
    std::int64_t max_chunks = 0, chunks = 0;
    for (const Rows& rows : mine) {
      const std::int64_t seen = seen_by_rows(rows).count();
      max_chunks = std::max(max_chunks, seen), chunks += seen;
      for (int r = 0; r < spread_.ranks; ++r)
        next.push_back(next[next.size() - states.size()] + held(rows.batch_entry, r) * state_floats_);
    }
    // Every number of a state, as kernels have it, is written and multiplied.
    const double numbers = static_cast<double>(chunks * layout_.floats());
    for_each(std::ssize(mine), max_chunks, numbers, [&](std::size_t n, float* scratch, float* partials) {
      const SeenChunks seen = seen_by_rows(mine[n]);
      const float** const of_ranks = next.data() + n * states.size();
      for (std::int64_t i = 0; i < seen.count(); ++i) {
        const float*& from = of_ranks[owner_of(seen[i])];
        unpack(std::exchange(from, from + state_floats_), partials + i * layout_.floats());
      }
      target_.decode_finish(lowered_.call, mine[n], seen.count(), scratch, partials);
      pack(partials, merged + static_cast<std::int64_t>(n) * state_floats_);
    });
  }

  bool finish(std::span<const float* const> merged) override {
    struct Merged {
      const Rows* rows;
      const float* state;
    };
    std::vector<Merged> others;  // this rank's own rows are written
    others.reserve(heads_.size());
    for (int r = 0; r < spread_.ranks; ++r) {
      const float* state = merged[static_cast<std::size_t>(r)];
      if (r == spread_.rank) continue;
      for (const Rows& rows : merged_by(r))
        others.push_back({&rows, std::exchange(state, state + state_floats_)});
    }
    const double numbers = static_cast<double>(std::ssize(others) * layout_.floats());
    for_each(std::ssize(others), 1, numbers, [&](std::size_t n, float* scratch, float* partial) {
      unpack(others[n].state, partial);
      target_.decode_finish(lowered_.call, *others[n].rows, 1, scratch, partial);
    });
    return lowered_.needs_repair != 0;
  }

 private:
  struct OwnChunk {
    Rows rows;
    std::int64_t chunk;
    std::size_t merged_by = 0;
    std::int64_t place = 0;  // among those for that rank
  };

  // The tables of whole sequences: page n holds tokens [n * page_size, (n + 1) * page_size), and a page lies
  // in one chunk.
  void place_pages() {
    const std::int64_t size = lowered_.call.layout.page_size, in_chunk = chunk_keys / size;
    tables_.resize(problem_.sequences.size());
    for (std::size_t b = 0; b < tables_.size(); ++b) {
      const std::int64_t pages = (problem_.sequences[b].keys + size - 1) / size;
      tables_[b].resize(static_cast<std::size_t>(pages));
      const unsigned char* const* own = problem_.cached[b].table;
      for (std::int64_t first = spread_.rank * in_chunk; first < pages; first += spread_.ranks * in_chunk) {
        const std::int64_t count = std::min(in_chunk, pages - first);
        std::copy_n(std::exchange(own, own + count), count, tables_[b].begin() + first);
      }
      whole_.push_back({tables_[b].data(), problem_.sequences[b].keys});
    }
    lowered_.call.cached = whole_.data();
  }

  void cut(std::int64_t b) {
    const Call& c = lowered_.call;
    const SeenChunks seen(c, c.sequences[b]);
    for (std::int64_t n = 0; n < seen.count(); ++n) ++held(b, owner_of(seen[n]));
    own_.reserve(own_.size() + static_cast<std::size_t>(c.kv_heads * held(b, spread_.rank)));
    for (std::int64_t h = 0; h < c.kv_heads; ++h) {
      heads_.push_back({b, h, 0, c.sequences[b].queries});
      for (std::int64_t n = 0; n < seen.count(); ++n)
        if (owner_of(seen[n]) == spread_.rank) own_.push_back({.rows = heads_.back(), .chunk = seen[n]});
    }
  }

  // Each rank merges as many heads as the others, or one less or more, in order.
  void share_heads() {
    const auto ranks = static_cast<std::size_t>(spread_.ranks);
    for (std::size_t r = 0; r <= ranks; ++r) firsts_[r] = heads_.size() * r / ranks;
    auto own = own_.begin();
    for (int r = 0; r < spread_.ranks; ++r)
      for (std::int64_t n = 0; n < held_for(spread_.rank, r); ++n, ++own)
        own->merged_by = static_cast<std::size_t>(r), own->place = n;
  }

  SeenChunks seen_by_rows(const Rows& rows) const {
    return {lowered_.call, lowered_.call.sequences[rows.batch_entry]};
  }
  int owner_of(std::int64_t chunk) const { return static_cast<int>(chunk / chunk_keys % spread_.ranks); }

  // Of the chunks that a sequence's rows see, those of a rank.
  std::int64_t& held(std::int64_t b, int rank) {
    return held_[static_cast<std::size_t>(b * spread_.ranks + rank)];
  }
  // A rank's states that another merges.
  std::int64_t held_for(int rank, int merging) const {
    std::int64_t sum = 0;
    for (const Rows& rows : merged_by(merging))
      sum += held_[static_cast<std::size_t>(rows.batch_entry * spread_.ranks + rank)];
    return sum;
  }
  std::span<const Rows> merged_by(int rank) const {
    const std::size_t first = firsts_[static_cast<std::size_t>(rank)];
    return std::span(heads_).subspan(first, firsts_[static_cast<std::size_t>(rank) + 1] - first);
  }

  // Calls task(n, scratch, states) for every task n, with room for `states_each` states, as kernels
  // have them, beside the scratch of each.
  template <class Do>
  void for_each(std::int64_t tasks, std::int64_t states_each, double multiplications, const Do& task) {
    if (tasks == 0) return;
    Layout layout;
    const auto scratch = layout.give_each_slot<float>(target_.decode_floats(lowered_.call));
    const auto states = layout.give_each_slot<float>(states_each * layout_.floats());
    TaskMemory memory(slots_for(static_cast<std::size_t>(tasks)), layout);
    share_out(tasks, multiplications, [&](std::int64_t n) {
      const TaskMemory::Slot slot(memory);
      task(static_cast<std::size_t>(n), slot[scratch], slot[states]);
    });
  }

  // The real rows of a state: maxima, sums, then the values of each.
  void pack(const float* partial, float* packed) const {
    packed = std::copy_n(partial, rows_, packed);
    packed = std::copy_n(partial + layout_.rows, rows_, packed);
    for (std::int64_t r = 0; r < rows_; ++r, packed += lowered_.call.value_dim)
      copy_values(partial + values_of(r), layout_.panel, packed, 1);
  }

  // Rows and dims that are not real are 0: nobody reads what becomes of them.
  void unpack(const float* packed, float* partial) const {
    const std::int64_t dims = lowered_.call.value_dim;
    const bool is_full = layout_.panel == 1 && layout_.dims == dims;  // where rows are real
    std::fill_n(partial, is_full ? 2 * layout_.rows : layout_.floats(), 0.0f);
    std::copy_n(packed, rows_, partial);
    std::copy_n(packed + rows_, rows_, partial + layout_.rows);
    packed += 2 * rows_;
    for (std::int64_t r = 0; r < rows_; ++r, packed += dims)
      copy_values(packed, 1, partial + values_of(r), layout_.panel);
  }

  // The values of one row; steps are in floats.
  void copy_values(const float* from, std::int64_t from_step, float* to, std::int64_t to_step) const {
    const std::int64_t dims = lowered_.call.value_dim;
    if (from_step == 1 && to_step == 1)
      std::copy_n(from, dims, to);
    else
      for (std::int64_t d = 0; d < dims; ++d) to[d * to_step] = from[d * from_step];
  }

  // Where the values of row r begin, in a state.
  std::int64_t values_of(std::int64_t r) const {
    return 2 * layout_.rows + r / layout_.panel * layout_.panel * layout_.dims + r % layout_.panel;
  }

  const Target& target_;
  const Problem& problem_;
  const Spread spread_;
  LoweredCall lowered_;
  std::vector<std::vector<const unsigned char*>> tables_{};  // pages of others are null
  std::vector<PagedSequence> whole_{};                       // the sequences over those
  std::vector<Rows> heads_{};          // of all sequences: the rows that read one KV head
  std::vector<std::size_t> firsts_{};  // of them, that each rank merges
  std::vector<OwnChunk> own_{};        // of this rank, those of one KV head one after another
  std::vector<std::int64_t> held_{};   // (batch, ranks)
  PartialLayout layout_{};
  std::int64_t rows_ = 0, state_floats_ = 0;  // that are real, and what of a state travels
};

}  // namespace

std::unique_ptr<SpreadDecode> begin_spread(const Target& target, const Problem& problem,
                                           const Spread& spread) {
  return std::make_unique<ChunkSpread>(target, problem, spread);
}

}  // namespace heed::cpu
