// SPDX-License-Identifier: Apache-2.0
// One call to attention() that owns everything it points to, and what came out of it.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cases/tensor.hpp"
#include "heed/attention.hpp"

namespace heed::cases {

struct BoolMatrix {
  BoolTensor where;
  bool hides = false;  // Hide rather than Keep
};

// Numbers (batch, keys) and (batch, queries), or one row of either for all; without query_ids by alignment.
struct Documents {
  std::vector<std::int32_t> ids{}, query_ids{};
  std::optional<Align> align{};

  Document mask() const { return {ids, align, query_ids}; }
};

// (heads), or (batch, heads).
struct Slopes {
  std::vector<float> of_heads{};
  std::optional<Align> align{};

  // Heads [first, first + count) of `heads`, for all batch entries or for each.
  Slopes some(std::int64_t first, std::int64_t count, std::int64_t heads) const {
    Slopes made{.align = align};
    for (auto row = of_heads.begin(); heads > 0 && row != of_heads.end(); row += heads)
      made.of_heads.insert(made.of_heads.end(), row + first, row + first + count);
    return made;
  }
};

struct Call {
  Tensor q, k, v;
  std::optional<Causal> causal{};
  std::optional<Window> window{};
  std::optional<std::vector<std::int32_t>> key_lengths{};
  std::optional<Documents> documents{};
  std::vector<BoolMatrix> matrices{};
  std::optional<Tensor> bias{}, sink{};
  std::optional<Slopes> alibi{};
  std::optional<float> scale{}, softcap{};
  std::optional<Dropout> dropout{};
  HeadMap head_map = HeadMap::interleaved;
  std::optional<DType> out_dtype{};  // default: the dtype of q

  Inputs inputs() const { return {q.view(), k.view(), v.view()}; }
  Options options(const std::string& kernel = "") const {
    Options made{
        .scale = scale, .softcap = softcap, .dropout = dropout, .head_map = head_map, .kernel = kernel};
    if (causal) made.masks.emplace_back(*causal);
    if (window) made.masks.emplace_back(*window);
    if (key_lengths) made.masks.emplace_back(KeyLengths{*key_lengths});
    if (documents) made.masks.emplace_back(documents->mask());
    for (const BoolMatrix& m : matrices) {
      if (m.hides) {
        made.masks.emplace_back(Hide{m.where.view()});
      } else {
        made.masks.emplace_back(Keep{m.where.view()});
      }
    }
    if (bias) made.bias = bias->view();
    if (alibi) made.alibi = Alibi{alibi->of_heads, alibi->align};
    if (sink) made.sink = sink->view();
    return made;
  }

  std::int64_t batch() const { return q.shape().batch; }
  std::int64_t heads() const { return q.shape().heads; }
  std::int64_t queries() const { return q.shape().length; }
  std::int64_t keys() const { return k.shape().length; }
  std::int64_t kv_head(std::int64_t h) const {  // S8
    const std::int64_t kv_heads = k.shape().heads;
    return head_map == HeadMap::tiled ? h % kv_heads : h / (heads() / kv_heads);
  }
  Shape out_shape() const { return {batch(), heads(), queries(), v.shape().dim}; }
  Shape score_shape() const { return {batch(), heads(), queries(), keys()}; }

  // S4, S9, S10, S11, S17, S20 and the -inf of S3, for one query and one key, in the words of the rules.
  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
  bool are_of_one_document(std::int64_t b, std::int64_t i, std::int64_t j) const;
  float bias_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
  float alibi_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;  // S21; 0 without
  bool sees_any(std::int64_t b, std::int64_t h, std::int64_t i) const {
    for (std::int64_t j = 0; j < keys(); ++j)
      if (sees(b, h, i, j)) return true;
    return false;
  }
};

struct Wants {
  bool weights = false, log_sum_exp = false;
  std::optional<Stage> scores{};
};
inline constexpr Wants everything{.weights = true, .log_sum_exp = true};

struct Results {
  Tensor out;
  std::optional<Tensor> weights{}, log_sum_exp{}, scores{};
  Stage stage = Stage::raw;

  Results(const Call& call, const Wants& wants)
      : out(call.out_shape(), call.out_dtype.value_or(call.q.dtype())) {
    out.fill_bytes(0xff);  // whatever is not written stays a NaN
    if (wants.weights) weights.emplace(call.score_shape()).fill_bytes(0xff);
    if (wants.log_sum_exp)
      log_sum_exp.emplace(Shape{call.batch(), call.heads(), call.queries(), 1}).fill_bytes(0xff);
    if (wants.scores) scores.emplace(call.score_shape()).fill_bytes(0xff), stage = *wants.scores;
  }
  Outputs outputs() {
    Outputs made{.out = out.mutable_view()};
    if (weights) made.weights = weights->mutable_view();
    if (log_sum_exp) made.log_sum_exp = log_sum_exp->mutable_view();
    if (scores) made.scores = {scores->mutable_view(), stage};
    return made;
  }
};

inline Results run(const Call& call, const Wants& wants = {}, const std::string& kernel = "") {
  Results results(call, wants);
  attention(call.inputs(), results.outputs(), call.options(kernel));
  return results;
}

inline float Call::bias_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const Shape& s = bias->shape();
  return bias->at(s.batch == 1 ? 0 : b, s.heads == 1 ? 0 : h, s.length == 1 ? 0 : i, s.dim == 1 ? 0 : j);
}

inline float Call::alibi_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  if (!alibi) return 0;
  const std::int64_t own = i + (alibi->align == Align::ends ? keys() - queries() : 0);
  const std::int64_t slope = std::ssize(alibi->of_heads) == heads() ? h : b * heads() + h;
  return -alibi->of_heads[static_cast<std::size_t>(slope)] * static_cast<float>(std::abs(own - j));
}

inline bool Call::are_of_one_document(std::int64_t b, std::int64_t i, std::int64_t j) const {
  const auto number = [b](const std::vector<std::int32_t>& ids, std::int64_t tokens, std::int64_t n) {
    return ids[static_cast<std::size_t>(std::ssize(ids) == tokens ? n : b * tokens + n)];
  };
  const auto& [ids, query_ids, align] = *documents;
  if (!query_ids.empty()) return number(ids, keys(), j) == number(query_ids, queries(), i);
  const std::int64_t own = i + (align == Align::ends ? keys() - queries() : 0);
  return own >= 0 && own < keys() && number(ids, keys(), j) == number(ids, keys(), own);
}

inline bool Call::sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  auto offset = [&](std::optional<Align> align) { return align == Align::ends ? keys() - queries() : 0; };
  if (causal && j > i + offset(causal->align)) return false;
  if (window) {
    const std::int64_t own = i + offset(window->align);
    if ((own - j > window->left && j >= window->front) || j - own > window->right) return false;
  }
  if (key_lengths && j >= (*key_lengths)[static_cast<std::size_t>(b)]) return false;
  if (documents && !are_of_one_document(b, i, j)) return false;
  for (const BoolMatrix& m : matrices)
    if (m.where.seen(b, h, i, j) == m.hides) return false;
  return !(bias && bias_at(b, h, i, j) == -std::numeric_limits<float>::infinity());
}

}  // namespace heed::cases
