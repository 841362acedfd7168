// SPDX-License-Identifier: Apache-2.0
// A checked call to attention(): every extent, stride and option here is known to be consistent, and an
// extent of 1 that broadcasts has become a stride of 0. Kernels read it as a KernelCall (problem/call.hpp),
// the reference as it is.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/reading.hpp"
#include "heed/attention.hpp"
#include "heed/gradient.hpp"
#include "heed/stream.hpp"
#include "problem/call.hpp"

namespace heed::problem {

// One Keep, Hide or Tree mask, (batch, heads, queries, keys) with stride 0 on every broadcast axis.
struct BoolMask {
  const bool* data = nullptr;
  Strides stride{};
  bool visible_when = true;  // Keep, Tree: true; Hide: false
  bool is_tree = false;      // column 0 is not key 0 but the first of the last `queries` keys
  Device device = Device::cpu;
};

// The keys of a stream that was not told how many will come: more than can.
constexpr std::int64_t unknown_keys = std::int64_t{1} << 36;

struct Problem {
  Problem() {}
  // Not lowered yet. (A constructor, because g++ clears an aggregate of this size before it fills it.)
  Problem(const Inputs& in, const Outputs& out, const Options& chosen)
      : inputs(in), outputs(out), options(chosen) {}

  // The call as it was made, but for the scale, which is always given here. The reference reads the masks
  // here, in the words of the specification; kernels do not. Views of packed rows have a batch stride of 0:
  // entry b begins at its sequence's first row.
  Inputs inputs;
  Outputs outputs;
  Options options;

  // queries and keys are those of the longest sequence.
  std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, dim = 0, value_dim = 0;
  bool has_no_dimensions = false;  // the call has none; q and k have one, which is 0 throughout (S1)

  Few<Sequence, 4> sequences{};  // one per batch entry; none where nothing is written (S14)
  // Not given: q is whole. Else sequences and `queries` are those of the larger problem, and a sequence's
  // first_query is negative.
  std::optional<Place> place{};
  std::int64_t front = 0;
  Few<Gap, 4> gaps{};  // (further windows, batch)
  Few<BoolMask, 4> bool_masks{};
  Few<DocumentIds, 4> documents{};

  // With a cache: its sequences' pages, held in place while this lives. inputs.k and inputs.v are empty.
  std::optional<cache::CacheReading> reading{};
  Few<PagedSequence, 4> cached{};  // one per batch entry
  PageLayout layout{};             // of the pages
  CacheType cache_type = CacheType::f32;
  // The cache rotates its keys when they are read: kernels are handed a copy of what it holds.
  bool rotates_keys = false;
  Type kv_type = Type::f32;  // of K and V as kernels read them, wherever they lie

  Optional<View> bias{}, sink{};  // broadcast axes have stride 0
  AlibiSlopes alibi{};

  Device device() const { return inputs.q.device; }  // of everything that is computed with
  float scale() const { return static_cast<float>(*options.scale); }
  float cap() const { return static_cast<float>(options.softcap.value_or(0)); }  // 0: none
  ScoreStage score_stage() const {
    if (!outputs.scores.into) return ScoreStage::none;
    return outputs.scores.stage == Stage::raw          ? ScoreStage::raw
           : outputs.scores.stage == Stage::softcapped ? ScoreStage::softcapped
                                                       : ScoreStage::biased;
  }
  // The queries of a sequence that q has rows for: [first, end).
  std::int64_t first_query_here() const { return place ? place->first_query : 0; }
  std::int64_t end_query_here(const Sequence& s) const {
    return place ? place->first_query + inputs.q.shape.length : s.queries;
  }
  std::int64_t kv_head(std::int64_t h) const {
    return options.head_map == HeadMap::interleaved ? h / (heads / kv_heads) : h % kv_heads;
  }
};

// A checked call to attention_backward(), lowered to plain data: the forward problem it is the gradient of,
// what was saved, and the gradients. Strides are as in Problem: 0 for what broadcasts and for the batch of
// packed rows.
struct GradientProblem {
  Problem forward{};  // its outputs are what was saved, and are never written
  View out{}, log_sum_exp{};
  View out_gradient{};
  Optional<View> log_sum_exp_gradient{};

  // As they were given, and as every (batch, heads, queries, keys) finds its element in them.
  Gradients given{};
  Optional<MutableView> q{}, k{}, v{}, bias{}, sink{};

  Device device() const { return forward.device(); }
};

// The gradients that need repair: a kernel did not write them, because numbers on the way do not fit its type
// or are none (S13). Rows of q,
// k and v by sequence, head and row, a sequence beginning at first_row or first_key; single elements of the
// others. 0: it was written.
struct RepairMarks {
  std::vector<std::int64_t> first_row{}, first_key{};
  std::vector<unsigned char> q{}, k{}, v{}, bias{}, sink{};

  bool is_empty() const {
    for (const auto* marks : {&q, &k, &v, &bias, &sink})
      for (const unsigned char mark : *marks)
        if (mark != 0) return false;
    return true;
  }
};

// From here on: the Problem as the KernelCall that kernels of every backend read.

// An axis of one entry has whatever stride it likes, and kernels multiply strides: it becomes 0, or 1 for the
// last axis.
Tensor lower(const View&);

template <class AnyView>
Tensor lower_if_given(const std::optional<AnyView>& x) {
  return x ? lower(View(*x)) : Tensor{};
}

// A KernelCall and what it points to beyond the Problem, which must outlive it.
struct LoweredProblem {
  explicit LoweredProblem(const Problem&);
  LoweredProblem(const Problem&, const softmax::Scaling&);
  LoweredProblem(const LoweredProblem&) = delete;
  LoweredProblem& operator=(const LoweredProblem&) = delete;

  Few<BoolTensor, 4> masks;
  KernelCall call;
};

}  // namespace heed::problem

namespace heed {
using problem::BoolMask, problem::GradientProblem, problem::Problem, problem::RepairMarks,
    problem::unknown_keys;
}
