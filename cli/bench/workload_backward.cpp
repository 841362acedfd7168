// SPDX-License-Identifier: Apache-2.0
// See workload_backward.hpp.
#include "bench/workload_backward.hpp"

#include <fmt/core.h>

#include "heed/check.hpp"
#include "heed/gradient.hpp"
#include "kernel_choice.hpp"
#include "random_values.hpp"

namespace heed::tool {
namespace {

template <class AnyView>
AnyView part_of(AnyView view, const Shape& from, const Shape& extents) {
  const std::int64_t elements = from.batch * view.stride.batch + from.heads * view.stride.heads +
                                from.length * view.stride.length + from.dim * view.stride.dim;
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) + elements * static_cast<std::int64_t>(bytes_of(view.dtype));
  view.shape = extents;
  return view;
}

class BackwardWorkload : public Workload {
 public:
  explicit BackwardWorkload(const Case& c)
      : case_(c),
        q_(random_buffer({c.batch, c.heads, c.queries, c.dim}, c.dtype, {.stream = Stream::q})),
        k_(random_buffer({c.batch, c.kv_heads, c.keys, c.dim}, c.dtype, {.stream = Stream::k})),
        v_(random_buffer(k_.shape(), c.dtype, {.stream = Stream::v})),
        out_gradient_(random_buffer(q_.shape(), c.dtype, {.stream = Stream::x})),
        out_(q_.shape(), c.dtype),
        log_sum_exp_({c.batch, c.heads, c.queries, 1}),
        gradients_({.dim = q_.shape().elements() + 2 * k_.shape().elements()}, c.dtype) {
    if (c.between == Between::causal) options_.masks = {Causal{}};
    attention(inputs(), {.out = out_.writable(), .log_sum_exp = log_sum_exp_.writable()}, options_);
  }

  void run() override { attention_backward(inputs(), saved(), gradients(), options_); }
  std::string kernel() override { return taken_kernel(plan(inputs(), saved(), gradients(), options_)); }
  Buffer& result() override { return gradients_; }

  // Rows spread over dq, dk and dv, each by heed::check() on the smallest call that has it.
  Findings verify() const override {
    Findings all;
    for (const std::int64_t head : spread_over(case_.heads))
      for (const std::int64_t query : spread_over(case_.queries)) all.add(verify_query(head, query));
    for (const std::int64_t head : spread_over(case_.kv_heads))
      for (const std::int64_t key : spread_over(case_.keys)) all.add(verify_key(head, key));
    return all;
  }

 private:
  Inputs inputs() const { return {.q = q_.view(), .k = k_.view(), .v = v_.view()}; }
  Saved saved() const { return {out_.view(), log_sum_exp_.view()}; }
  Gradients gradients() const {
    // Side by side in one buffer, as one result.
    const MutableView all = const_cast<Buffer&>(gradients_).writable();
    const auto piece = [&](std::int64_t first, const Shape& shape) {
      MutableView view = part_of(all, {0, 0, 0, first}, shape);
      view.stride = bhsd(shape);
      return view;
    };
    const std::int64_t of_q = q_.shape().elements(), of_k = k_.shape().elements();
    return {.out = out_gradient_.view(),
            .q = piece(0, q_.shape()),
            .k = piece(of_q, k_.shape()),
            .v = piece(of_q + of_k, k_.shape())};
  }
  std::int64_t last_batch() const { return case_.batch - 1; }
  bool is_causal() const { return case_.between == Between::causal; }

  // dq of one query needs its own row and the keys it sees.
  Findings verify_query(std::int64_t head, std::int64_t query) const {
    const std::int64_t kv_head = head / (case_.heads / case_.kv_heads),
                       keys = is_causal() ? query + 1 : case_.keys;
    const auto row = [&](const auto& view) {
      return part_of(view, {last_batch(), head, query, 0}, {1, 1, 1, view.shape.dim});
    };
    const auto seen = [&](const View& view) {
      return part_of(view, {last_batch(), kv_head, 0, 0}, {1, 1, keys, view.shape.dim});
    };
    const Gradients found = gradients();
    return findings_of(
        check({.q = row(q_.view()), .k = seen(k_.view()), .v = seen(v_.view())},
              {row(out_.view()), row(log_sum_exp_.view())}, {.out = row(found.out), .q = row(*found.q)}),
        fmt::format("head {}, query {}", head, query));
  }

  // dk and dv of one key need that key, and the queries that see it with what was saved of them.
  Findings verify_key(std::int64_t kv_head, std::int64_t key) const {
    const std::int64_t group = case_.heads / case_.kv_heads, first = is_causal() ? key : 0;
    const auto rows = [&](const View& view) {
      return part_of(view, {last_batch(), kv_head * group, first, 0},
                     {1, group, case_.queries - first, view.shape.dim});
    };
    const auto row = [&](const auto& view) {
      return part_of(view, {last_batch(), kv_head, key, 0}, {1, 1, 1, view.shape.dim});
    };
    const Gradients found = gradients();
    return findings_of(check({.q = rows(q_.view()), .k = row(k_.view()), .v = row(v_.view())},
                             {rows(out_.view()), rows(log_sum_exp_.view())},
                             {.out = rows(found.out), .k = row(*found.k), .v = row(*found.v)}),
                       fmt::format("KV head {}, key {}", kv_head, key));
  }

  static Findings findings_of(const Check& found, const std::string& where) {
    return {.compared = found.compared,
            .misses = found.beyond_bound,
            .worst_in_bounds = found.worst_error_in_bounds,
            .first_miss = found.first_miss.empty() ? "" : where + ": " + found.first_miss};
  }

  Case case_;
  Buffer q_, k_, v_, out_gradient_, out_, log_sum_exp_, gradients_;
  Options options_{};
};

}  // namespace

std::unique_ptr<Workload> make_backward_workload(const Case& c) {
  return std::make_unique<BackwardWorkload>(c);
}

}  // namespace heed::tool
