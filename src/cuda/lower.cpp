// SPDX-License-Identifier: Apache-2.0
#include "cuda/lower.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/prefill/plan.hpp"
#include "refusal/refusal.hpp"

namespace heed::cuda {
namespace {

// Of matrices of booleans, in the order of the problem's.
std::vector<std::int64_t> bytes_on_host(const Problem& p) {
  std::vector<std::int64_t> bytes;
  const auto add = [&](const auto& mask) {
    if constexpr (requires { mask.where; }) {
      const bool is_there = mask.where.device != Device::cpu || mask.where.shape.elements() == 0;
      bytes.push_back(is_there ? 0 : reach_bytes(Argument("mask", mask.where)));
    }
  };
  for (const Mask& mask : p.options.masks) std::visit(add, mask);
  return bytes;
}

// Which sequence of a cache it is does not matter here: `cached` lists their pages.
bool is_like(const Sequence& a, const Sequence& b) {
  return a.queries == b.queries && a.keys == b.keys && a.first_query == b.first_query &&
         a.first_key == b.first_key && a.key_count == b.key_count && a.first_offset == b.first_offset &&
         a.end_offset == b.end_offset;
}

bool cuts_some(std::span<const Sequence> sequences) {
  return std::ranges::any_of(sequences, [](const Sequence& s) { return s.queries > 0 && cuts_keys(s); });
}

// The copy engine wants a distance between rows, even where there is one row.
void set_row_stride(Tensor& t, const View& x) {
  constexpr std::int64_t line = 8;
  if (x.shape.length <= 1) t.stride.length = (x.shape.dim + line - 1) / line * line;
}

SharedGradient shared(const Optional<MutableView>& lowered, const Optional<MutableView>& given) {
  if (!given) return {};
  const Shape& own = given->shape;
  return {lower(View(*lowered)), own.batch, own.heads, own.length, own.dim};
}

}  // namespace

LoweredCall::LoweredCall(const Problem& p) : LoweredCall(p, softmax::scaling_of(p.scale(), p.cap())) {}

LoweredCall::LoweredCall(const Problem& p, const softmax::Scaling& scaling)
    : problem(p),
      lowered(p, scaling),
      masks_to_bring(bytes_on_host(p)),
      query_rows(p.inputs.q.shape.length),
      key_rows(p.inputs.k.shape.length),
      call{lowered.call} {
  set_row_stride(call.q, p.inputs.q);
  set_row_stride(call.k, p.inputs.k);
  set_row_stride(call.v, p.inputs.v);
  set_row_stride(call.out, View(p.outputs.out));
  call.min_exponent = -127.0f / call.scaling.exponent;
  call.scale_log2e = softmax::in_base_2(p.scale());
  call.softcap_log2e = softmax::in_base_2(static_cast<float>(call.cap));
  call.scale_over_softcap =
      softmax::softcap_of(static_cast<float>(call.cap), {.product = p.scale()}).argument;
  const auto as_the_first = [&](const Sequence& s) { return is_like(s, *p.sequences.begin()); };
  if (!p.sequences.empty()) call.each = *p.sequences.begin();
  if (std::all_of(p.sequences.begin(), p.sequences.end(), as_the_first)) call.sequences = nullptr;
  call.cuts_some = cuts_some(p.sequences);
  copy_documents();
}

void LoweredCall::copy_documents() {
  const Problem& p = problem;
  const auto copy = [&](const std::int32_t* from, std::int64_t step, std::int64_t tokens) {
    const std::int64_t count = from == nullptr ? 0 : step == 0 ? tokens : p.batch * step;
    document_numbers.emplace_back(from, from + count);
  };
  const std::int64_t queries = p.inputs.query_starts.empty() ? p.inputs.q.shape.length : p.queries;
  for (const DocumentIds& d : p.documents) {
    copy(d.keys, d.keys_step, p.keys);
    copy(d.queries, d.queries_step, queries);
  }
  find_runs();
}

// One mask whose documents have rising numbers, each query standing beside a key: what a query sees of it is
// a range of keys.
void LoweredCall::find_runs() {
  const Problem& p = problem;
  if (p.documents.size() != 1 || p.documents[0].queries || call.front > 0 || call.gap_count > 0) return;
  const DocumentIds& d = p.documents[0];
  std::vector<std::int32_t> starts, offsets;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (b > 0 && d.keys_step == 0) {
      offsets.insert(offsets.end(), {offsets[0], offsets[1]});
      continue;
    }
    offsets.push_back(static_cast<std::int32_t>(starts.size()));
    const std::int32_t* const ids = d.keys + b * d.keys_step;
    const std::int64_t keys = d.keys_step == 0 ? p.keys : p.sequences[static_cast<std::size_t>(b)].keys;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (j > 0 && ids[j] < ids[j - 1]) return;
      if (j == 0 || ids[j] != ids[j - 1]) starts.push_back(static_cast<std::int32_t>(j));
    }
    offsets.push_back(static_cast<std::int32_t>(starts.size()));
  }
  run_starts = std::move(starts), run_offsets = std::move(offsets);
}

namespace {

// What a call asks for by rows.
auto tensors_of_rows(auto& c) { return std::array{&c.q, &c.k, &c.v, &c.out, &c.log_sum_exp}; }
auto gradients_of_rows(auto& g) {
  return std::array{&g.q, &g.k, &g.v, &g.out_gradient, &g.log_sum_exp_gradient};
}

// Whether batch entries follow each other as rows of one in all of them.
bool are_rows_of_one(const Call& c, std::span<const Tensor* const> tensors) {
  return c.batch == 1 || std::ranges::all_of(tensors, [&](const Tensor* t) {
           return !t->data || t->stride.batch == c.queries * t->stride.length;
         });
}

// Dropout counts queries from the batch entry's first; masks and a bias have its columns.
bool are_sequences(const LoweredCall& lowered) {
  const Call& c = lowered.call;
  if (lowered.run_starts.empty() || c.mask_count > 0 || c.bias.data || c.drop_below > 0 || c.cached)
    return false;
  for (const Sequence& s : lowered.problem.sequences)
    if (s.queries != c.queries || s.keys != c.queries || s.first_query != 0) return false;
  const bool shares_slopes = !c.alibi.of_heads || c.alibi.step == 0, shares_sink = c.sink.stride.batch == 0;
  return !c.weights.data && !c.scores.data && (c.batch == 1 || (shares_slopes && shares_sink)) &&
         are_rows_of_one(c, tensors_of_rows(c));
}

}  // namespace

PackedDocuments::PackedDocuments(const LoweredCall& lowered) {
  const Call& c = lowered.call;
  if (!are_sequences(lowered)) return;
  rows = c.batch * c.queries;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto begin = static_cast<std::size_t>(lowered.run_offsets[static_cast<std::size_t>(2 * b)]),
               end = static_cast<std::size_t>(lowered.run_offsets[static_cast<std::size_t>(2 * b + 1)]);
    for (std::size_t n = begin; n < end; ++n) {
      const std::int64_t first = lowered.run_starts[n],
                         last = n + 1 < end ? std::int64_t{lowered.run_starts[n + 1]} : c.queries;
      Sequence s = lowered.problem.sequences[static_cast<std::size_t>(b)];
      s.queries = s.keys = last - first;
      s.first_query = s.first_key = b * c.queries + first;
      s.key_count = std::clamp<std::int64_t>(s.key_count - first, 0, s.keys);
      sequences.push_back(s);
    }
  }
}

PackedDocuments::PackedDocuments(const LoweredGradients& lowered) : PackedDocuments(lowered.forward) {
  const GradientCall& g = lowered.call;
  if (!are_rows_of_one(g.forward, gradients_of_rows(g)) || g.sink.batch > 1) sequences.clear();
}

Call PackedDocuments::of(const Call& c) const {
  Call made = c;
  made.batch = static_cast<std::int64_t>(sequences.size());
  made.sequences = sequences.data();
  made.cuts_some = cuts_some(sequences);
  made.queries = made.keys = 0;
  for (const Sequence& s : sequences) made.queries = made.keys = std::max(made.queries, s.queries);
  made.document_count = 0;
  made.alibi.step = 0;
  for (Tensor* t : tensors_of_rows(made)) t->stride.batch = 0;
  made.sink.stride.batch = 0;
  return made;
}

GradientCall PackedDocuments::of(const GradientCall& g) const {
  GradientCall made = g;
  made.forward = of(g.forward);
  made.shares_query_rows = made.shares_key_rows = true;
  made.query_rows = made.key_rows = rows;
  for (Tensor* t : gradients_of_rows(made)) t->stride.batch = 0;
  return made;
}

// Weights are measured against log-sum-exps, in base 2.
LoweredGradients::LoweredGradients(const GradientProblem& g)
    : problem(g),
      forward(g.forward, softmax::gradient_scaling_of(g.forward.scale(), g.forward.cap())),
      call{.forward = forward.call,
           .out_gradient = lower(g.out_gradient),
           .log_sum_exp_gradient = problem::lower_if_given(g.log_sum_exp_gradient),
           .q = problem::lower_if_given(g.q),
           .k = problem::lower_if_given(g.k),
           .v = problem::lower_if_given(g.v),
           .bias = shared(g.bias, g.given.bias),
           .sink = shared(g.sink, g.given.sink),
           .scale = g.forward.scale(),
           .accumulates = g.given.accumulate,
           .shares_query_rows = !g.forward.inputs.query_starts.empty(),
           .shares_key_rows = !g.forward.inputs.key_starts.empty(),
           .query_rows = forward.query_rows,
           .key_rows = forward.key_rows} {}

}  // namespace heed::cuda
