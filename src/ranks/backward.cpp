// SPDX-License-Identifier: Apache-2.0
// The gradients of attention over ranks. Sums over queries and sums over keys cannot both stay on a rank that
// has some of either, but they never cross KV heads: so rows are exchanged for heads, and the gradients go
// back.
#include <array>

#include "heed/distributed.hpp"
#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "plan/gradient.hpp"
#include "ranks/agreement.hpp"
#include "ranks/meaning.hpp"
#include "ranks/rows.hpp"
#include "ranks/rows_for_heads.hpp"
#include "ranks/share.hpp"
#include "refusal/arguments.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

class BackwardCall {
 public:
  BackwardCall(Group& group, const Split& split, const Inputs& in, const Saved& saved,
               const Gradients& gradients, const Options& options)
      : group_(group), split_(split), in_(in), gradients_(gradients), options_(options) {
    Agreement agreement;
    try {
      prepare(saved);
    } catch (const std::exception& e) {
      agreement.refuse(e.what());
    }
    describe(agreement, group, split, own_ ? &in : nullptr, options);
    describe_gradients(agreement);
    agreement.settle(group);
  }

  void run() {
    try {
      RowsForHeads rows(group_, split_, own_);
      rows.to_heads(travelling_, wholes_);
      differentiate();
      rows.to_rows(back_, gradients_.accumulate, planning::backend_of("q", in_.q.device));
    } catch (const std::exception& e) {
      group_.abort(e.what());
      throw;
    }
  }

 private:
  std::int64_t of_group() const { return split_.whole.heads / split_.whole.kv_heads; }

  void prepare(const Saved& saved) {
    groups_ = head_groups_for(group_, split_);
    own_ = own_group(groups_, group_.rank());
    const Share& mine = split_.of_rank[static_cast<std::size_t>(group_.rank())];
    check_share(mine, split_, in_, options_);
    check_refused();
    if (!own_) return;
    if (options_.head_map == HeadMap::tiled && own_->members.size() > 1)
      throw refusal(Error::unsupported,
                    "options.head_map: tiled, but heads that share keys must be neighbours");
    check_written(mine);
    travelling_ = {{false, in_.q}, {false, saved.out}, {false, saved.log_sum_exp}, {false, gradients_.out}};
    if (gradients_.log_sum_exp) travelling_.push_back({false, *gradients_.log_sum_exp});
    constexpr std::array names{"q", "saved.out", "saved.log_sum_exp", "gradients.out",
                               "gradients.log_sum_exp"};
    Arguments arguments;
    for (std::size_t n = 0; n < travelling_.size(); ++n) {
      check_rows(names[n], travelling_[n].rows, total(mine.queries));
      check_heads(names[n], travelling_[n].rows, in_.q.shape);
      arguments.add(names[n], travelling_[n].rows);
    }
    check_alone(arguments.all());
    travelling_.push_back({true, in_.k});
    travelling_.push_back({true, in_.v});
    const RowsForHeads rows(group_, split_, own_);
    for (const Travelling& t : travelling_) wholes_.push_back(rows.make_whole(t, t.rows.dtype));
    prepare_local(rows);
  }

  void check_refused() const {
    if (options_.bias)
      throw refusal(Error::unsupported, "options.bias: given, but no rank has all of its rows");
    for (const Mask& mask : options_.masks)
      if (std::holds_alternative<Keep>(mask) || std::holds_alternative<Hide>(mask))
        throw refusal(Error::unsupported,
                      "options.masks: a boolean mask is given, but no rank has all of its rows");
    if (gradients_.bias || gradients_.sink)
      throw refusal(Error::unsupported, gradients_.bias ? "gradients.bias" : "gradients.sink",
                    ": asked for, but over ranks there are those by q, k and v only");
  }

  static void check_heads(const char* name, const View& x, const Shape& like) {
    if (x.shape.batch != like.batch || x.shape.heads != like.heads)
      throw refusal(Error::shape, name, ".shape: ", x.shape, " does not fit that of its argument: ", like);
  }

  void check_written(const Share& mine) const {
    const auto check = [](const char* name, const Optional<MutableView>& x, const View& of,
                          std::int64_t rows) {
      if (!x) return;
      check_rows(name, View(*x), rows);
      check_heads(name, View(*x), of.shape);
      if (x->shape.dim != of.shape.dim)
        throw refusal(Error::shape, name, ".dim: ", x->shape.dim,
                      " is not that of its argument: ", of.shape.dim);
    };
    check("gradients.q", gradients_.q, in_.q, total(mine.queries));
    check("gradients.k", gradients_.k, in_.k, total(mine.keys));
    check("gradients.v", gradients_.v, in_.v, total(mine.keys));
  }

  void describe_gradients(Agreement& a) const {
    if (!own_) return;
    const auto type = [](const Optional<MutableView>& x) {
      return x ? static_cast<std::int64_t>(x->dtype) + 1 : 0;
    };
    a.add("the type of gradients.q, or 0,", type(gradients_.q));
    a.add("the type of gradients.k, or 0,", type(gradients_.k));
    a.add("the type of gradients.v, or 0,", type(gradients_.v));
    a.add("gradients.out.dtype", static_cast<std::int64_t>(gradients_.out.dtype));
    a.add("that gradients.log_sum_exp is given", gradients_.log_sum_exp.has_value());
    a.add("gradients.accumulate", gradients_.accumulate);
  }

  Options options_of_heads(const Stretch& kv_heads) const {
    Options options = options_;
    const std::int64_t first = kv_heads.first * of_group(), count = kv_heads.length * of_group();
    if (options.sink && options.sink->shape.heads > 1) options.sink = heads_of(*options.sink, first, count);
    if (options.alibi)
      options.alibi->slopes = std::span<const float>(options.alibi->slopes)
                                  .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    return options;
  }

  // The call that this rank makes of its heads, and room for its gradients.
  void prepare_local(const RowsForHeads& rows) {
    const bool has_lse = gradients_.log_sum_exp.has_value();
    const std::size_t k = has_lse ? 5 : 4;
    local_.inputs = {.q = wholes_[0].view, .k = wholes_[k].view, .v = wholes_[k + 1].view};
    local_.saved = {wholes_[1].view, wholes_[2].view};
    local_.gradients.out = wholes_[3].view;
    if (has_lse) local_.gradients.log_sum_exp = wholes_[4].view;
    heads_ = rows.own_heads();
    local_.options = options_of_heads(heads_);
    const auto make = [&](const Optional<MutableView>& wanted, std::size_t of) -> Optional<MutableView> {
      if (!wanted) return {};
      // What is added to is added to where it lies, rounded once.
      const DType dtype = gradients_.accumulate ? DType::f32 : wanted->dtype;
      back_.push_back({travelling_[of], rows.make_whole(travelling_[of], dtype), *wanted});
      return back_.back().made.view;
    };
    local_.gradients.q = make(gradients_.q, 0);
    local_.gradients.k = make(gradients_.k, k);
    local_.gradients.v = make(gradients_.v, k + 1);
    lowering::make_gradient_problem(local_.inputs, local_.saved, local_.gradients, local_.options);
  }

  void differentiate() const {
    if (!own_ || heads_.length == 0) return;
    const Place place{0, split_.whole.queries, (own_->first_kv_head + heads_.first) * of_group(),
                      split_.whole.heads};
    planning::attention_backward(local_.inputs, local_.saved, local_.gradients, local_.options, place);
  }

  Group& group_;
  const Split& split_;
  const Inputs& in_;
  const Gradients& gradients_;
  const Options& options_;
  std::vector<HeadGroup> groups_{};
  const HeadGroup* own_ = nullptr;
  Stretch heads_{};  // KV heads of the group that this rank differentiates
  std::vector<Travelling>
      travelling_{};             // q, out, log-sum-exp, dO, the gradient by the log-sum-exp if any, k, v
  std::vector<Whole> wholes_{};  // the same, with all rows of this rank's heads
  struct {
    Inputs inputs{};
    Saved saved{};
    Gradients gradients{};
    Options options{};
  } local_{};
  std::vector<Returning> back_{};
};

}  // namespace
}  // namespace heed::ranks

namespace heed::inline v0_2 {

void attention_backward(Group& group, const Split& split, const Inputs& inputs, const Saved& saved,
                        const Gradients& gradients, const Options& options) {
  ranks::BackwardCall(group, split, inputs, saved, gradients, options).run();
}

}  // namespace heed::inline v0_2
