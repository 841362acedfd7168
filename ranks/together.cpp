// SPDX-License-Identifier: Apache-2.0
#include "ranks/together.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <functional>
#include <string_view>
#include <vector>

#include "api/plan.hpp"
#include "call/make_problem.hpp"
#include "heed/threads.hpp"
#include "ranks/gathered.hpp"
#include "ranks/meaning.hpp"
#include "ranks/rows.hpp"
#include "threads/pool.hpp"

namespace heed::ranks {
namespace {

constexpr std::size_t line_bytes = 64;
// One rank makes the memory while the others wait, and writes zeros to some 4 GB in a second.
constexpr std::size_t max_bytes = std::size_t{8} << 30;
constexpr std::int64_t max_threads = 1 << 16;

// Beyond what ranks have agreed on, for a task of one to be a task of all.
struct Alike {
  std::int64_t is_possible = 0;
  std::int64_t kernel = 0, of_heads = 0, float_mode = 0;  // as numbers
  std::int64_t out_type = 0, has_lse = 0;
  friend bool operator==(const Alike&, const Alike&) = default;
};

struct Word {
  Alike alike{};
  std::int64_t threads = 0;
};

// "cpu.prefill.neon" of "cpu.stream.neon": both cut by the queries, and have the same bits.
std::string prefill_kernel(std::string stream_kernel) {
  constexpr std::string_view stream = "cpu.stream.";
  if (!stream_kernel.starts_with(stream)) return {};
  return stream_kernel.replace(0, stream.size(), "cpu.prefill.");
}

// A bias or a boolean mask has the rows of a share, and only that rank has them.
bool has_rows_of_its_own(const Options& options) {
  const auto is_matrix = [](const Mask& mask) {
    return std::holds_alternative<Keep>(mask) || std::holds_alternative<Hide>(mask);
  };
  return options.bias || std::ranges::any_of(options.masks, is_matrix);
}

// What each head has of its own: ranks that have all heads must have the same.
std::int64_t number_of_heads(const Options& options) {
  std::vector<std::int64_t> numbers;
  if (options.alibi) {
    numbers.push_back(options.alibi->align ? 1 + static_cast<std::int64_t>(*options.alibi->align) : 0);
    for (const float slope : options.alibi->slopes) numbers.push_back(std::bit_cast<std::int32_t>(slope));
  }
  if (options.sink) {
    const Shape& s = options.sink->shape;
    std::vector<std::byte> bytes(static_cast<std::size_t>(s.elements() * element_bytes(*options.sink)));
    pack_rows(*options.sink, 0, s.length, bytes.data());
    numbers.insert(numbers.end(), {s.batch, s.heads, static_cast<std::int64_t>(options.sink->dtype)});
    for (const std::byte one : bytes) numbers.push_back(std::to_integer<std::int64_t>(one));
  }
  return number_of(numbers);
}

Alike described(const RankArguments& a) {
  const std::string kernel = prefill_kernel(a.stream_kernel);
  const WholeCall& whole = a.split.whole;
  const auto has_all_heads = [&](const Share& share) { return share.kv_heads == whole.kv_heads; };
  const bool has_heads_of_its_own =
      (a.options.alibi || a.options.sink) &&
      !std::all_of(a.split.of_rank.begin(), a.split.of_rank.end(), has_all_heads);
  if (kernel.empty() || has_rows_of_its_own(a.options) || has_heads_of_its_own) return {};
  return {.is_possible = whole.queries > 0 && whole.keys > 0,
          .kernel = static_cast<std::int64_t>(std::hash<std::string>()(kernel)),
          .of_heads = number_of_heads(a.options),
          .float_mode = static_cast<std::int64_t>(threads::FloatMode::here().bits),
          .out_type = static_cast<std::int64_t>(a.out.out.dtype),
          .has_lse = a.out.log_sum_exp.has_value()};
}

// The arrays of the whole call, one after another; the counter of tasks lies before them.
class WholeArrays {
 public:
  explicit WholeArrays(const RankArguments& a) : has_lse_(a.out.log_sum_exp.has_value()) {
    const WholeCall& whole = a.split.whole;
    const std::int64_t batch = a.in.q.shape.batch, dim = a.in.q.shape.dim, value_dim = a.in.v.shape.dim;
    q_ = add({batch, whole.heads, whole.queries, dim}, a.in.q.dtype);
    k_ = add({batch, whole.kv_heads, whole.keys, dim}, a.in.k.dtype);
    v_ = add({batch, whole.kv_heads, whole.keys, value_dim}, a.in.v.dtype);
    out_ = add({batch, whole.heads, whole.queries, value_dim}, a.out.out.dtype);
    if (has_lse_) lse_ = add({batch, whole.heads, whole.queries, 1}, DType::f32);
  }

  std::size_t bytes() const { return bytes_; }
  void lie_in(std::span<std::byte> memory) { memory_ = memory.data(); }

  std::atomic<std::uint64_t>& next_task() const {
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // so that processes may share it
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_);
  }
  MutableView q() const { return at(q_); }
  MutableView k() const { return at(k_); }
  MutableView v() const { return at(v_); }
  Outputs outputs() const {
    Outputs all{.out = at(out_)};
    if (has_lse_) all.log_sum_exp = at(lse_);
    return all;
  }

 private:
  struct Array {
    std::size_t at = 0;
    Shape shape{};
    DType dtype{};
  };

  // Beyond what there may be, no more is counted.
  Array add(const Shape& shape, DType dtype) {
    const Array made{bytes_, shape, dtype};
    const auto wanted = elements::product(shape.elements(), static_cast<std::int64_t>(bytes_of(dtype)));
    const std::size_t bytes = std::min(static_cast<std::size_t>(wanted), max_bytes + 1);
    bytes_ += (bytes + line_bytes - 1) / line_bytes * line_bytes;
    return made;
  }
  MutableView at(const Array& array) const { return {memory_ + array.at, array.shape, array.dtype}; }

  std::byte* memory_ = nullptr;
  std::size_t bytes_ = line_bytes;
  bool has_lse_;
  Array q_{}, k_{}, v_{}, out_{}, lse_{};
};

// Tasks that all ranks have cut alike: each is run by who takes its number.
class TasksOfAll final : public Executor {
 public:
  // Within the call: its own threads are what the call says.
  TasksOfAll(std::atomic<std::uint64_t>& next, int threads_of_all, Executor* of_caller)
      : next_(next), threads_of_all_(threads_of_all), of_caller_(of_caller) {}

  int concurrency() const override { return threads_of_all_; }
  void run(std::size_t tasks, void (*task)(void* context, std::size_t i), void* context) override {
    const threads::ForOneCall for_call(own_threads_, of_caller_);
    threads::parallel_for(std::min(threads::concurrency(), tasks), [&](std::size_t) {
      for (std::uint64_t n; (n = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;)
        task(context, static_cast<std::size_t>(n));
    });
  }

 private:
  std::atomic<std::uint64_t>& next_;
  const int threads_of_all_, own_threads_ = num_threads();
  Executor* const of_caller_;
};

// One rank's part in it.
class CallOfAll {
 public:
  CallOfAll(const RankArguments& arguments, int rank, int threads)
      : a_(arguments),
        share_(a_.split.of_rank[static_cast<std::size_t>(rank)]),
        group_(a_.split.whole.heads / a_.split.whole.kv_heads),
        threads_of_all_(threads),
        arrays_(a_) {}

  std::size_t bytes() const { return arrays_.bytes(); }
  void lie_in(std::span<std::byte> memory) { arrays_.lie_in(memory); }
  void begin() const { arrays_.next_task().store(0, std::memory_order_relaxed); }

  void put_rows() const {
    for_own(share_.queries, arrays_.q(), group_, [&](std::int64_t row, const MutableView& there) {
      copy_rows(rows_of(a_.in.q, row, there.shape.length), there);
    });
    for (const auto& [own, whole] : {std::pair(a_.in.k, arrays_.k()), std::pair(a_.in.v, arrays_.v())})
      for_own(share_.keys, whole, 1, [&, &x = own](std::int64_t row, const MutableView& there) {
        copy_rows(rows_of(x, row, there.shape.length), there);
      });
  }

  // Whether rows were left.
  bool attend() const {
    TasksOfAll tasks(arrays_.next_task(), threads_of_all_, a_.options.executor);
    Options options = a_.options;
    options.kernel = prefill_kernel(a_.stream_kernel);
    options.executor = &tasks;
    const Inputs all{.q = arrays_.q(), .k = arrays_.k(), .v = arrays_.v()};
    const Outputs results = arrays_.outputs();
    const Problem problem = make_problem(all, results, options);
    const threads::ForOneCall for_call(options.threads, options.executor);
    return api::choose(Work::attention, problem).attend(problem);
  }

  void take_rows() const {
    const Outputs all = arrays_.outputs();
    for_own(share_.queries, all.out, group_, [&](std::int64_t row, const MutableView& there) {
      copy_rows(there, rows_of(a_.out.out, row, there.shape.length));
    });
    if (!all.log_sum_exp) return;
    for_own(share_.queries, *all.log_sum_exp, group_, [&](std::int64_t row, const MutableView& there) {
      copy_rows(there, rows_of(*a_.out.log_sum_exp, row, there.shape.length));
    });
  }

 private:
  // Of every stretch the row of the share that it begins with, and where it lies in the whole call.
  template <class Do>
  void for_own(const std::vector<Stretch>& stretches, const MutableView& whole, std::int64_t heads_of_one,
               const Do& with) const {
    const MutableView own =
        heads_of(whole, share_.first_kv_head * heads_of_one, share_.kv_heads * heads_of_one);
    std::int64_t row = 0;
    for (const auto& [first, length] : stretches) {
      if (length > 0) with(row, rows_of(own, first, length));
      row += length;
    }
  }

  const RankArguments& a_;
  const Share& share_;
  const std::int64_t group_;  // of query heads that read a KV head
  const int threads_of_all_;
  WholeArrays arrays_;
};

}  // namespace

bool attend_together(Group& group, const GroupCall& call, const RankArguments& arguments) {
  if (!call.share_memory()) return false;
  const threads::ForOneCall for_call(arguments.options.threads, arguments.options.executor);
  const Word own{described(arguments), static_cast<std::int64_t>(threads::concurrency())};
  std::int64_t threads = 0;
  for (const Word& word : gathered(group, "how each rank computes", own)) {
    if (word.alike != own.alike || word.alike.is_possible != 1) return false;
    threads += word.threads;
  }
  CallOfAll whole(arguments, group.rank(),
                  static_cast<int>(std::clamp<std::int64_t>(threads, 1, max_threads)));
  if (whole.bytes() > max_bytes) return false;
  const std::span<std::byte> memory = call.shared(whole.bytes());
  if (memory.empty()) return false;
  whole.lie_in(memory);
  if (group.rank() == 0) whole.begin();
  whole.put_rows();
  static_cast<void>(gathered(group, "keys and values", std::byte{1}));
  const std::byte has_left{whole.attend()};
  const std::vector<std::byte> left = gathered(group, "results", has_left);
  if (std::count(left.begin(), left.end(), std::byte{0}) != group.size()) return false;
  whole.take_rows();
  return true;
}

}  // namespace heed::ranks
