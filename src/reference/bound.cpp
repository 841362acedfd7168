// SPDX-License-Identifier: Apache-2.0
#include "reference/bound.hpp"

#include <algorithm>
#include <cmath>

namespace heed::reference {
namespace {

// The running maximum may move, and so rescale the row, once per block of keys and once per chunk of blocks.
constexpr std::int64_t keys_per_rescale = 128, keys_per_rescale_in_f64 = 64;
// The terms of a chain in f32: dimensions of a score, keys of an output.
constexpr std::int64_t chain_of_dimensions = 128, chain_of_keys = 256;

// An int8 cache holds whole numbers and a scale. Kernels multiply the finished score by the key's scale, and
// the weight by the value's: one rounding. What the reference reads is scale times number, rounded to f32:
// another.
double int8_roundings(const Problem& p) { return p.cache_type == CacheType::int8 ? 2 : 0; }

// What an error of a rounded weight is multiplied by, beside the value: the whole number of an int8 cache, by
// whose scale the weight was multiplied before it was rounded.
double largest_factor(const Problem& p) { return p.cache_type == CacheType::int8 ? 127 : 1; }

// `relative` of a number. Where scores are so large that their errors decide who wins, the relative error is
// beyond all numbers, of a weight that is 0 as well; but weights lie between 0 and 1, so no error exceeds
// `most`.
double part_of(double number, double relative, double most) {
  return std::isfinite(relative) ? std::min(relative * number, most) : most;
}

// Of a term on its way through a sum over n dimensions: one for each term of its chain, one for each later
// chain. 16-bit types, whose matrix instructions go on in one chain, and f64 have no other.
double roundings_of_dims(const Problem& p, std::int64_t n) {
  if (p.inputs.q.dtype != DType::f32) return static_cast<double>(n);
  return static_cast<double>(std::min(n, chain_of_dimensions) + n / chain_of_dimensions);
}

bool is_f64(const Problem& p) { return p.inputs.q.dtype == DType::f64; }

}  // namespace

Unit unit_of(const Problem& p) {
  if (is_f64(p)) return {.u = 0x1p-52, .underflow = 0x1p-1021, .half_spacing = 0x1p-1074};
  return {};
}

double roundoff(DType dtype) {
  return dtype == DType::f64   ? 0x1p-53
         : dtype == DType::f32 ? 0x1p-24
         : dtype == DType::f16 ? 0x1p-11
                               : 0x1p-8;
}

double smallest(DType dtype) {
  return dtype == DType::f64    ? 0x1p-1074
         : dtype == DType::f16  ? 0x1p-25
         : dtype == DType::bf16 ? 0x1p-134
                                : 0x1p-150;
}

RowBound::RowBound(const Problem& p, const Numbers& numbers, const Row& row, std::int64_t b, std::int64_t h,
                   std::int64_t i)
    : p_(p),
      row_(row),
      unit_(unit_of(p)),
      magnitude_(static_cast<std::size_t>(p.value_dim)),
      largest_value_(static_cast<std::size_t>(p.value_dim)) {
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const double scale = std::abs(*p.options.scale);
  const bool is_bf16 = p.inputs.q.dtype == DType::bf16;
  double largest_dot = 0, largest_flushed = 0, largest_sum = 0, largest_bias = 0;
  const std::int64_t query = s.first_query + i;
  const double* q_row = numbers.q(b, h, query);
  for (std::int64_t j = 0; j < s.keys; ++j) {
    if (row.biased[static_cast<std::size_t>(j)] == -INFINITY) continue;
    const double *k_row = numbers.k(b, p.kv_head(h), s.first_key + j),
                 *v_row = numbers.v(b, p.kv_head(h), s.first_key + j);
    double dot = 0, keys = 0, flushed = is_bf16 ? 2 * static_cast<double>(p.dim) * min_normal : 0;
    for (std::int64_t d = 0; d < p.dim; ++d) {
      const double q = std::abs(q_row[d]), k = std::abs(k_row[d]);
      dot += q * k;
      keys += k;
      if (is_bf16 && (q < min_normal || k < min_normal)) flushed += q * k;
    }
    largest_dot = std::max(largest_dot, scale * dot);
    largest_flushed = std::max(largest_flushed, scale * flushed);
    largest_sum = std::max(largest_sum, dot + keys + (1 + scale) * static_cast<double>(p.dim));
    const double bias = p.bias ? std::abs(read(*p.bias, b, h, query, j)) : 0;
    largest_bias = std::max(largest_bias, bias + std::abs(alibi(p, b, h, i, j)));
    for (std::size_t d = 0; d < magnitude_.size(); ++d) {
      const double v = std::abs(v_row[d]);
      magnitude_[d] += row.weight[static_cast<std::size_t>(j)] * v;
      largest_value_[d] = std::max(largest_value_[d], v);
    }
  }
  const double sink = p.sink ? std::abs(read(*p.sink, b, h, 0, 0)) : 0;
  largest_score_ = largest_dot + largest_bias + (std::isfinite(sink) ? sink : 0);
  // Those of the chains, a few of scale and log2(e), those of int8, then those of adding the bias and
  // subtracting the maximum. The scale may be subnormal, and so may the query times it and every sum of a
  // chain. Matrix instructions for 16-bit types have one chain.
  const bool is_chained = p.inputs.q.dtype == DType::f32;
  score_error_ = unit_.gamma(roundings_of_dims(p, p.dim) + 4 + int8_roundings(p)) * largest_dot +
                 unit_.gamma(8) * largest_score_ + largest_flushed + unit_.half_spacing * largest_sum;
  if (p.options.softcap) score_error_ += unit_.tanh_error * std::min(*p.options.softcap, largest_dot);
  const auto rescales =
      static_cast<double>(p.keys / (is_f64(p) ? keys_per_rescale_in_f64 : keys_per_rescale) + 4);
  const std::int64_t chain = is_chained ? std::min(p.keys, chain_of_keys) : p.keys;
  relative_error_ = std::expm1(2 * score_error_) + rescales * unit_.exp2_error +
                    2 * unit_.gamma(static_cast<double>(chain) + rescales + 8);
}

double RowBound::out(std::int64_t d) const {
  const double keep_probability = p_.options.dropout ? 1.0 - p_.options.dropout->drop_probability : 1.0;
  const double magnitude = magnitude_[static_cast<std::size_t>(d)],
               largest = largest_value_[static_cast<std::size_t>(d)];
  const DType dtype = p_.outputs.out.dtype;
  // Matrix instructions take the weights rounded to the operands' type as well. Those for bf16 lose what is
  // subnormal; in f16 a weight is kept as 2^7 times as much, and may lose half the spacing of its subnormals.
  const DType operands = p_.inputs.q.dtype;
  const double operand = operands == DType::f32 || is_f64(p_) ? 0 : roundoff(operands);
  const double lost = operands == DType::bf16  ? 2 * unit_.underflow
                      : operands == DType::f16 ? 0x1p-7 * smallest(DType::f16)
                                               : unit_.underflow;
  const double relative = relative_error_ + unit_.gamma(int8_roundings(p_)) + operand + roundoff(dtype);
  return part_of(magnitude, relative, 2 * largest / keep_probability) + smallest(dtype) +
         static_cast<double>(p_.keys) * lost * (largest + largest_factor(p_)) / keep_probability;
}

double RowBound::weight(std::int64_t j) const {
  const double keep_probability = p_.options.dropout ? 1.0 - p_.options.dropout->drop_probability : 1.0;
  const DType dtype = p_.outputs.weights->dtype;
  return part_of(row_.weight[static_cast<std::size_t>(j)], relative_error_ + roundoff(dtype),
                 1 / keep_probability) +
         smallest(dtype) + unit_.underflow / keep_probability;
}

double RowBound::log_sum_exp() const {
  if (std::isinf(row_.log_sum_exp)) return 0;  // a row that sees no key says so exactly
  const double relative = std::min(relative_error_, std::log(static_cast<double>(p_.keys)) + 1);
  const double magnitude = std::abs(row_.log_sum_exp);
  const double own =
      is_f64(p_) ? roundoff(p_.outputs.log_sum_exp->dtype) * magnitude : 0;  // f32 is in the rest
  return score_error_ + relative + 4 * unit_.u * (largest_score_ + magnitude + 1) + own;
}

namespace {

// A sum runs in blocks: chains of up to so many terms, and one addition for each block of at least so many.
constexpr std::int64_t longest_chain = 192, shortest_block = 96;

// Of a product over the values' dimensions, by kernels that compute with vectors.
double roundings_of_width(const GradientProblem& g) {
  const std::int64_t n = g.forward.value_dim;
  if (is_f64(g.forward)) return static_cast<double>(n);
  return static_cast<double>(std::min(n, chain_of_dimensions) + n / chain_of_dimensions);
}

// Matrix instructions take bf16 or f16 throughout. The bound does not ask whether they were used.
bool may_use_matrices(const GradientProblem& g) {
  const DType operands = g.forward.inputs.q.dtype;
  return operands != DType::f32 && g.out_gradient.dtype == operands;
}

double sum_of_magnitudes(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += std::abs(a[d] * b[d]);
  return sum;
}

// What matrix instructions lose of a sum of products: those with a subnormal factor, and of each product,
// pair and sum what is subnormal.
double flushed_of(const double* a, const double* b, std::int64_t n) {
  double sum = 2 * static_cast<double>(n) * min_normal;
  for (std::int64_t d = 0; d < n; ++d)
    if (std::abs(a[d]) < min_normal || std::abs(b[d]) < min_normal) sum += std::abs(a[d] * b[d]);
  return sum;
}

// A term on its way into matrix instructions: it is rounded to bf16, and lost where it is subnormal; or 2^7
// times as much is rounded to f16, and may lose half the spacing of its subnormals. Of its product with a
// number they lose what is subnormal, the number too, and of the pair and the sum it becomes part of.
void round_for_matrices(Term& t, DType operands) {
  if (std::isinf(t.error)) return;  // nothing is known of it, and its value may be no number
  const double most = std::abs(t.value) + t.error;
  t.error +=
      roundoff(operands) * most + (operands == DType::f16 ? 0x1p-7 * smallest(DType::f16) : min_normal);
  t.lost = min_normal * (3 + most);
}

// Of a weight exp(x) whose x is off by up to `of_score`.
double weight_error(const Unit& unit, double x, double of_score) {
  if (x == -INFINITY)
    return unit.underflow;  // by a log-sum-exp of +inf: whatever the errors, nothing is left
  const double grown = std::exp(x + of_score);
  return grown * (-std::expm1(-of_score) + unit.exp2_error + unit.u) + unit.underflow;
}

// Of the product of two numbers, each with its error, rounded once.
Term product(const Unit& unit, const Term& a, const Term& b) {
  const double value = a.value * b.value, max_a = std::abs(a.value) + a.error;
  if (std::isinf(a.error) || std::isinf(b.error)) return {value, INFINITY};
  return {value, a.error * std::abs(b.value) + max_a * b.error +
                     unit.u * max_a * (std::abs(b.value) + b.error) + unit.half_spacing};
}

}  // namespace

void add_errors(const GradientProblem& g, const GradientNumbers& numbers, std::int64_t b, std::int64_t h,
                std::int64_t i, GradientRow& r) {
  const Problem& p = g.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t query = s.first_query + i;
  if (r.sees_no_key) return;
  const RowBound of_scores(p, numbers.forward, r.scores, b, h, i);
  const bool has_matrices = may_use_matrices(g);
  const Unit unit = unit_of(p);
  const double min_spacing = 2 * unit.half_spacing;  // what a sum of subnormals may lose
  const double lse = std::abs(r.log_sum_exp),
               width = has_matrices ? static_cast<double>(p.value_dim) + 1 : roundings_of_width(g);
  const double exponent_error = of_scores.score_error() + 3 * unit.u * (lse + of_scores.largest_score());
  const double* from_out = numbers.out_gradient(b, h, query);
  const double of_lse = g.log_sum_exp_gradient ? std::abs(read(*g.log_sum_exp_gradient, b, h, query, 0)) : 0;
  const double delta = sum_of_magnitudes(from_out, numbers.out(b, h, query), p.value_dim) + of_lse;
  const double keep = p.options.dropout ? 1 / (1.0 - p.options.dropout->drop_probability) : 1;
  const double lost = (width + 4) * keep * min_spacing;
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const auto n = static_cast<std::size_t>(j);
    if (r.scores.biased[n] == -INFINITY) continue;
    const double* value = numbers.forward.v(b, p.kv_head(h), s.first_key + j);
    const double from_value = keep * sum_of_magnitudes(from_out, value, p.value_dim),
                 flushed = has_matrices ? keep * flushed_of(from_out, value, p.value_dim) : 0;
    const Term weight{r.weight[n], weight_error(unit, r.scores.biased[n] - r.log_sum_exp, exponent_error)};
    const Term gradient{r.weight_gradient[n], unit.gamma(width + 4) * (from_value + delta) + flushed + lost};
    r.applied[n].error = product(unit, weight, {keep, unit.gamma(1) * keep}).error;
    r.score[n].error = product(unit, weight, gradient).error;
    r.raw[n].error = r.score[n].error;
    if (const std::optional<double> c = p.options.softcap) {
      const double t = r.scores.softcapped[n] / *c;
      const Term slope{1 - t * t, 2 * (of_scores.score_error() / *c + unit.tanh_error) + 2 * unit.u};
      r.raw[n].error = product(unit, r.score[n], slope).error;
    }
    if (!has_matrices) continue;
    round_for_matrices(r.applied[n], p.inputs.q.dtype);
    round_for_matrices(r.raw[n], p.inputs.q.dtype);
  }
  if (!p.sink) return;
  const double sink = read(*p.sink, b, h, 0, 0);
  const Term weight{std::exp(sink - r.log_sum_exp),
                    weight_error(unit, sink - r.log_sum_exp, 3 * unit.u * (std::abs(sink) + lse))};
  const Term gradient{delta, unit.gamma(width + 2) * delta + (width + 4) * min_spacing};
  r.sink.error = product(unit, weight, gradient).error;
}

double roundings_of(const GradientProblem& g, std::int64_t terms) {
  // Matrix instructions go on in one chain, whose roundings may be to odd: twice as much for every second
  // term.
  if (may_use_matrices(g)) return static_cast<double>(terms + 3);
  if (is_f64(g.forward)) return static_cast<double>(terms);  // one chain
  return static_cast<double>(std::min(terms, longest_chain) + terms / shortest_block);
}

// Three more are the default scale, the product with it, and the addition of +0 or of what was there.
SumBound::SumBound(const Unit& unit, double roundings, double factor, DType dtype)
    : factor_(factor),
      gamma_(unit.gamma(roundings + 4)),
      spacing_((roundings + 4) * 2 * unit.half_spacing),
      roundoff_(roundoff(dtype)),
      smallest_(smallest(dtype)),
      of_nothing_(of_terms({})) {}

double SumBound::of(const Sum& sum) const {
  const bool is_nothing = sum.value == 0 && sum.error == 0 && sum.magnitude == 0;
  return is_nothing ? of_nothing_ : of_terms(sum);
}

double SumBound::of_terms(const Sum& sum) const {
  if (std::isinf(sum.error)) return sum.error;
  const double most = std::abs(factor_) * (sum.error + gamma_ * sum.magnitude + spacing_);
  return most + roundoff_ * (std::abs(factor_ * sum.value) + most) + smallest_;
}

}  // namespace heed::reference
