// SPDX-License-Identifier: Apache-2.0
// The gradients of attention over ranks. Sums over queries and sums over keys cannot both stay on a rank that
// has some of either, but they never cross KV heads: so rows are exchanged for heads, and the gradients go
// back. Only the gradient by a bias or a sink that heads share crosses them: then one rank has all heads.

#include <algorithm>

#include "api/plan.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "heed/distributed.hpp"
#include "ranks/agreement.hpp"
#include "ranks/group_call.hpp"
#include "ranks/matrices.hpp"
#include "ranks/meaning.hpp"
#include "ranks/rows.hpp"
#include "ranks/rows_for_heads.hpp"
#include "ranks/share.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

class BackwardCall {
 public:
  BackwardCall(Group& group, const Split& split, const Inputs& in, const Saved& saved,
               const Gradients& gradients, const Options& options)
      : group_(group), only_(group), split_(split), in_(in), gradients_(gradients), options_(options) {
    agree([&] { check(saved); },
          [&](Agreement& a) { describe(a, group, split, own_ ? &in : nullptr, options); });
    matrices_ = matrices_of(options);
    const std::vector<MatrixShapes> shapes = gather_shapes(group, matrices_);
    agree([&] { prepare(saved, shapes); }, [&](Agreement& a) { describe_gradients(a); });
  }

  void run() {
    or_abort(group_, [this] {
      RowsForHeads rows = rows_for_heads();
      exchange(rows);
      differentiate();
      rows.to_rows(back_, backend_of("q", in_.q.device));
    });
  }

 private:
  // What one rank refuses in `prepare`, or describes as no other, all refuse.
  template <class Prepare, class Describe>
  void agree(const Prepare& prepare, const Describe& describe) {
    Agreement agreement(Agreement::Of::gradients);
    try {
      prepare();
    } catch (const std::exception& e) {
      agreement.refuse(e.what());
    }
    describe(agreement);
    agreement.settle(only_);
  }

  void check(const Saved& saved) {
    groups_ = head_groups_for(group_, split_);
    own_ = own_group(groups_, group_.rank());
    const Share& mine = split_.of_rank[static_cast<std::size_t>(group_.rank())];
    check_share(mine, split_, in_, options_);
    if (!own_) return;
    if (options_.head_map == HeadMap::tiled && own_->members.size() > 1)
      throw refusal(Error::unsupported,
                    "options.head_map: tiled, but heads that share keys must be neighbours");
    for (const Mask& mask : options_.masks)
      if (std::holds_alternative<Tree>(mask))
        throw refusal(Error::unsupported, "tree mask: given, but it is about all queries at once");
    check_arguments(saved, mine);
  }

  void prepare(const Saved& saved, const std::vector<MatrixShapes>& shapes) {
    if (!own_) return;
    settle_axes(matrices_, shapes, split_, *own_, group_.rank());
    check_shared();
    const auto travels = [this](const View& x, Axis axis) { travelling_.push_back({axis, axis, x}); };
    for (const View& x : {in_.q, saved.out, saved.log_sum_exp, gradients_.out}) travels(x, Axis::of_queries);
    if (gradients_.log_sum_exp) travels(*gradients_.log_sum_exp, Axis::of_queries);
    for (const View& x : {in_.k, in_.v}) travels(x, Axis::of_keys);
    for (const Matrix& m : matrices_)
      if (m.as.rows != Axis::shared) travelling_.push_back(m.as);
    const RowsForHeads rows = rows_for_heads();
    for (const Travelling& t : travelling_) wholes_.push_back(rows.make_whole(t, t.own.bytes));
    prepare_local(rows, saved);
  }

  RowsForHeads rows_for_heads() const {
    const bool crosses = is_shared(gradients_.bias) || is_shared(gradients_.sink);
    return {group_, split_, own_,
            crosses ? RowsForHeads::Between::first_all_heads : RowsForHeads::Between::each_some_heads};
  }

  // Whether several heads share what it is the gradient of.
  bool is_shared(const Optional<MutableView>& gradient) const {
    return gradient && gradient->shape.heads == 1 && in_.q.shape.heads > 1;
  }

  void check_shared() const {
    if (own_->kv_heads == split_.whole.kv_heads) return;
    for (const auto& [name, gradient] : {std::pair("bias", gradients_.bias), {"sink", gradients_.sink}})
      if (is_shared(gradient))
        throw refusal(Error::unsupported, "gradients.", name, ": asked for, but heads share the ", name,
                      " and the split has them on different ranks");
  }

  // What is read and what is written, by itself, beside its share and beside each other.
  void check_arguments(const Saved& saved, const Share& mine) const {
    Arguments arguments;
    const auto reads = [&](const char* name, const View& x) {
      check_rows(name, x, total(mine.queries));
      check_heads(name, x, in_.q.shape);
      arguments.add(name, x);
    };
    arguments.add("q", in_.q);
    arguments.add("k", in_.k);
    arguments.add("v", in_.v);
    reads("saved.out", saved.out);
    reads("saved.log_sum_exp", saved.log_sum_exp);
    reads("gradients.out", gradients_.out);
    if (gradients_.log_sum_exp) reads("gradients.log_sum_exp", *gradients_.log_sum_exp);
    constexpr Rule written{.use = Rule::written, .types = Rule::of_q_or_f32};
    const auto writes = [&](const char* name, const Optional<MutableView>& x, const char* of_name,
                            const std::optional<View>& of) {
      if (!x) return;
      if (!of) throw refusal(Error::value, name, ": given, but ", of_name, " is not");
      if (x->shape != of->shape)
        throw refusal(Error::shape, name, ".shape: ", x->shape, " is not ", of_name, ".shape: ", of->shape);
      arguments.add(name, *x, written);
    };
    writes("gradients.q", gradients_.q, "q", in_.q);
    writes("gradients.k", gradients_.k, "k", in_.k);
    writes("gradients.v", gradients_.v, "v", in_.v);
    writes("gradients.bias", gradients_.bias, "options.bias", options_.bias);
    writes("gradients.sink", gradients_.sink, "options.sink", options_.sink);
    if (options_.bias) arguments.add("options.bias", *options_.bias);
    if (options_.sink) arguments.add("options.sink", *options_.sink);
    if (options_.alibi) check_slopes(options_.alibi->slopes, in_.q.shape.batch, in_.q.shape.heads);
    for (const Mask& mask : options_.masks) call::add_arguments(mask, arguments);
    check_alone(arguments.all());
    check_dtypes(arguments.all(), in_.q.dtype);
    check_devices(arguments.all(), "q.device", Device::cpu);
    check_overlap(arguments.all());
  }

  static void check_heads(const char* name, const View& x, const Shape& like) {
    if (x.shape.batch != like.batch || x.shape.heads != like.heads)
      throw refusal(Error::shape, name, ".shape: ", x.shape, " does not fit that of its argument: ", like);
  }

  void describe_gradients(Agreement& a) const {
    if (!own_) a.say_no_more();
    const auto type = [](const Optional<MutableView>& x) {
      return x ? static_cast<std::int64_t>(x->dtype) + 1 : 0;
    };
    a.add("the type of gradients.q, or 0,", type(gradients_.q));
    a.add("the type of gradients.k, or 0,", type(gradients_.k));
    a.add("the type of gradients.v, or 0,", type(gradients_.v));
    a.add("the type of gradients.bias, or 0,", type(gradients_.bias));
    a.add("the type of gradients.sink, or 0,", type(gradients_.sink));
    a.add("that heads share gradients.sink", is_shared(gradients_.sink));
    a.add("gradients.sink.batch, or 0,", gradients_.sink ? gradients_.sink->shape.batch : 0);
    a.add("the type of options.bias, or 0,",
          options_.bias ? static_cast<std::int64_t>(options_.bias->dtype) + 1 : 0);
    a.add("gradients.out.dtype", static_cast<std::int64_t>(gradients_.out.dtype));
    a.add("that gradients.log_sum_exp is given", gradients_.log_sum_exp.has_value());
    a.add("gradients.accumulate", gradients_.accumulate);
  }

  Travelling sink_as_travelling() const {
    const bool has_heads = options_.sink->shape.heads == in_.q.shape.heads;
    return {Axis::shared, has_heads ? Axis::of_queries : Axis::shared, *options_.sink};
  }

  // Of these heads, for all batch entries or for each.
  std::span<const float> slopes_of_heads(const Stretch& heads) {
    const std::span<const float> given = options_.alibi->slopes;
    slopes_.clear();
    for (std::int64_t first = 0; first < std::ssize(given); first += in_.q.shape.heads)
      for (std::int64_t h = 0; h < heads.length; ++h)
        slopes_.push_back(given[static_cast<std::size_t>(first + heads.first + h)]);
    return slopes_;
  }

  // The options of the call that this rank makes of its heads, whose matrices have all rows.
  Options options_of_heads(const RowsForHeads& rows) {
    Options options = options_;
    if (options.sink) {
      const Stretch of_sink = rows.heads_in(sink_as_travelling(), heads_);
      options.sink = heads_of(*options.sink, of_sink.first, of_sink.length);
    }
    const Stretch of_queries = rows.heads_in({}, heads_);
    if (options.alibi) options.alibi->slopes = slopes_of_heads(of_queries);
    std::size_t matrix = 0, whole = wholes_.size();
    for (const Matrix& m : matrices_) whole -= m.as.rows != Axis::shared;
    // Of the next matrix: all rows, where it has some for every query.
    const auto with_all_rows = [&](auto& view, const auto& of_whole) {
      const Travelling& as = matrices_[matrix++].as;
      const Stretch heads = rows.heads_in(as, heads_);
      view = as.rows != Axis::shared ? of_whole(wholes_[whole++]) : heads_of(view, heads.first, heads.length);
    };
    if (options.bias)
      with_all_rows(*options.bias, [&](Whole& x) { return View(x.numbers(options_.bias->dtype)); });
    for (Mask& mask : options.masks) {
      const auto booleans = [](const Whole& x) { return x.booleans(); };
      if (auto* keep = std::get_if<Keep>(&mask)) with_all_rows(keep->where, booleans);
      if (auto* hide = std::get_if<Hide>(&mask)) with_all_rows(hide->where, booleans);
    }
    return options;
  }

  // The call that this rank makes of its heads, and room for its gradients.
  void prepare_local(const RowsForHeads& rows, const Saved& saved) {
    const bool has_lse = gradients_.log_sum_exp.has_value();
    const std::size_t k = has_lse ? 5 : 4;
    const auto whole = [this](std::size_t n, const View& of) { return View(wholes_[n].numbers(of.dtype)); };
    local_.inputs = {.q = whole(0, in_.q), .k = whole(k, in_.k), .v = whole(k + 1, in_.v)};
    local_.saved = {whole(1, saved.out), whole(2, saved.log_sum_exp)};
    local_.gradients.out = whole(3, gradients_.out);
    if (has_lse) local_.gradients.log_sum_exp = whole(4, *gradients_.log_sum_exp);
    heads_ = rows.own_heads();
    local_.options = options_of_heads(rows);
    back_.reserve(5);
    local_.gradients.accumulate = gradients_.accumulate;
    const auto make = [&](const Optional<MutableView>& wanted,
                          const Travelling& of) -> Optional<MutableView> {
      if (!wanted) return {};
      const bool adds = gradients_.accumulate && of.rows == Axis::shared;
      const DType dtype = adds ? DType::f32 : wanted->dtype;
      const auto bytes = static_cast<std::int64_t>(bytes_of(dtype));
      back_.push_back({of, dtype, rows.make_whole(of, bytes), *wanted, adds});
      return back_.back().made.numbers(dtype);
    };
    local_.gradients.q = make(gradients_.q, travelling_[0]);
    local_.gradients.k = make(gradients_.k, travelling_[k]);
    local_.gradients.v = make(gradients_.v, travelling_[k + 1]);
    if (gradients_.bias) local_.gradients.bias = make(gradients_.bias, matrices_[0].as);
    if (gradients_.sink) local_.gradients.sink = make(gradients_.sink, sink_as_travelling());
    call::make_gradient_problem(local_.inputs, local_.saved, local_.gradients, local_.options);
  }

  // What is added to goes where the sums are: it is rounded once, as in one process, also where a number of
  // the sum leaves the range of f32. A row that all ranks get has another number on each, and is added there.
  void exchange(RowsForHeads& rows) {
    std::vector<Travelling> all = travelling_;
    std::vector<Whole*> into;
    for (Whole& whole : wholes_) into.push_back(&whole);
    for (Returning& r : back_) {
      if (!gradients_.accumulate) break;
      if (r.adds) {
        const MutableView sums = r.made.numbers(DType::f32);
        std::fill_n(static_cast<float*>(sums.data), sums.shape.elements(), -0.0f);  // which adds nothing
      } else {
        all.push_back({r.of.rows, r.of.heads, View(r.into)});
        into.push_back(&r.made);
      }
    }
    rows.to_heads(all, into);
  }

  void differentiate() const {
    if (!own_ || heads_.length == 0) return;
    const std::int64_t of_group = split_.whole.heads / split_.whole.kv_heads;
    const Place place{0, split_.whole.queries, (own_->first_kv_head + heads_.first) * of_group,
                      split_.whole.heads};
    api::attention_backward(local_.inputs, local_.saved, local_.gradients, local_.options, place);
  }

  Group& group_;
  const GroupCall only_;
  const Split& split_;
  const Inputs& in_;
  const Gradients& gradients_;
  const Options& options_;
  std::vector<HeadGroup> groups_{};
  const HeadGroup* own_ = nullptr;
  Stretch heads_{};              // KV heads of the group that this rank differentiates
  std::vector<float> slopes_{};  // those of these heads
  std::vector<Matrix> matrices_{};
  // q, out, log-sum-exp, dO, the gradient by the log-sum-exp if any, k, v, matrices with rows
  std::vector<Travelling> travelling_{};
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

namespace HEED_NAMESPACE {

void attention_backward(Group& group, const Split& split, const Inputs& inputs, const Saved& saved,
                        const Gradients& gradients, const Options& options) {
  ranks::BackwardCall(group, split, inputs, saved, gradients, options).run();
}

}  // namespace HEED_NAMESPACE
