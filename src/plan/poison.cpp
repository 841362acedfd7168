// SPDX-License-Identifier: Apache-2.0
#include "plan/poison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "plan/token_rows.hpp"
#include "threads/throwing.hpp"

namespace heed::planning {
namespace {

using cache::Side;
using reference::UnfinishedRow;

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

bool is_number(double x) { return std::isfinite(x); }

// A KV head of a sequence that rows were left of.
struct Head {
  std::int64_t b, kv_head;
  std::vector<std::int64_t> poisoned{};             // keys whose values are not all numbers, in order
  std::optional<std::vector<float>> largest_key{};  // magnitudes in each dimension, where a value is infinite
};

// Keys at which a thread begins.
struct Stretch {
  std::size_t head;
  std::int64_t begin, end;
};

class Poison {
 public:
  Poison(const Problem& problem, const std::vector<UnfinishedRow>& left)
      : p_(problem), heads_(heads_of(left)) {
    find_poisoned();
    find_largest_keys();
  }

  // Whether what was left of a row is decided; then it is written.
  bool settle(const UnfinishedRow&) const;

 private:
  std::vector<Head> heads_of(const std::vector<UnfinishedRow>& left) const {
    if (p_.reading && p_.cache_type == CacheType::int8) return {};  // it holds nothing but numbers
    std::vector<bool> has_any(static_cast<std::size_t>(p_.batch * p_.kv_heads));
    for (const UnfinishedRow& row : left)
      if (row.only_out) has_any[static_cast<std::size_t>(row.b * p_.kv_heads + p_.kv_head(row.h))] = true;
    std::vector<Head> heads;
    for (std::int64_t n = 0; n < p_.batch * p_.kv_heads; ++n)
      if (has_any[static_cast<std::size_t>(n)]) heads.push_back({n / p_.kv_heads, n % p_.kv_heads});
    return heads;
  }

  const Head* head_of(const UnfinishedRow& row) const {
    const std::int64_t kv_head = p_.kv_head(row.h);
    const auto found = std::find_if(heads_.begin(), heads_.end(), [&](const Head& head) {
      return head.b == row.b && head.kv_head == kv_head;
    });
    return found == heads_.end() ? nullptr : &*found;
  }

  template <class Taken>
  std::vector<Stretch> stretches(const Taken& taken) const {
    constexpr std::int64_t together = 1024;
    std::vector<Stretch> all;
    for (std::size_t n = 0; n < heads_.size(); ++n) {
      const std::int64_t keys = p_.sequences[static_cast<std::size_t>(heads_[n].b)].keys;
      for (std::int64_t j = 0; taken(heads_[n]) && j < keys; j += together)
        all.push_back({n, j, std::min(j + together, keys)});
    }
    return all;
  }

  TokenRows rows(const Head& head, Side side) const { return {p_, side, head.b, head.kv_head}; }

  void find_poisoned() {
    const std::vector<Stretch> all = stretches([](const Head&) { return true; });
    std::vector<std::vector<std::int64_t>> found(all.size());
    threads::throwing_parallel_for(all.size(), [&](std::size_t n) {
      const TokenRows values = rows(heads_[all[n].head], Side::values);
      const auto are_numbers = [](const auto& row) { return std::all_of(row.begin(), row.end(), is_number); };
      constexpr std::int64_t few = 64;
      for (std::int64_t j = all[n].begin; j < all[n].end; j += few) {
        const std::int64_t end = std::min(j + few, all[n].end);
        if (are_numbers(values.largest(j, end))) continue;
        for (std::int64_t one = j; one < end; ++one)
          if (!are_numbers(values(one))) found[n].push_back(one);
      }
    });
    for (std::size_t n = 0; n < all.size(); ++n) {
      std::vector<std::int64_t>& keys = heads_[all[n].head].poisoned;
      keys.insert(keys.end(), found[n].begin(), found[n].end());
    }
  }

  bool has_infinity(const Head& head) const {
    const TokenRows values = rows(head, Side::values);
    return std::any_of(head.poisoned.begin(), head.poisoned.end(), [&](std::int64_t j) {
      const std::vector<double> row = values(j);
      return std::any_of(row.begin(), row.end(), [](double x) { return std::isinf(x); });
    });
  }

  void find_largest_keys() {
    for (Head& head : heads_)
      if (has_infinity(head)) head.largest_key.emplace(static_cast<std::size_t>(p_.dim), 0.0f);
    const std::vector<Stretch> all = stretches([](const Head& head) { return head.largest_key.has_value(); });
    std::vector<std::vector<float>> found(all.size());
    threads::throwing_parallel_for(all.size(), [&](std::size_t n) {
      found[n] = rows(heads_[all[n].head], Side::keys).largest(all[n].begin, all[n].end);
    });
    for (std::size_t n = 0; n < all.size(); ++n) {
      std::vector<float>& largest = *heads_[all[n].head].largest_key;
      for (std::size_t d = 0; d < largest.size(); ++d) largest[d] = larger(largest[d], found[n][d]);
    }
  }

  // NaN where one of them is.
  template <class Number>
  static Number larger(Number a, Number b) {
    return a <= b ? b : b <= a ? a : a + b;
  }

  std::vector<double> query(const UnfinishedRow&) const;
  double highest(const UnfinishedRow&, const Head&, const std::vector<double>& q) const;

  const Problem& p_;
  std::vector<Head> heads_;
};

std::vector<double> Poison::query(const UnfinishedRow& at) const {
  std::vector<double> q;
  const std::int64_t row = p_.sequences[static_cast<std::size_t>(at.b)].first_query + at.i;
  for (std::int64_t d = 0; d < p_.dim; ++d) q.push_back(reference::read(p_.inputs.q, at.b, at.h, row, d));
  return q;
}

// No score of the row, and not the sink, is higher: NaN or infinite where one may be none.
double Poison::highest(const UnfinishedRow& at, const Head& head, const std::vector<double>& q) const {
  const Sequence& s = p_.sequences[static_cast<std::size_t>(at.b)];
  double product = 0;
  for (std::size_t d = 0; d < q.size(); ++d)
    product += std::abs(q[d]) * static_cast<double>((*head.largest_key)[d]);
  constexpr double roundings = 1 + 0x1p-20;  // of the reference's sum
  double most =
      product * std::abs(p_.options.scale.value_or(1 / std::sqrt(static_cast<double>(p_.dim)))) * roundings;
  if (p_.options.softcap && is_number(most)) most = std::min(most, static_cast<double>(*p_.options.softcap));
  const std::int64_t ends[] = {0, s.keys - 1};  // the farthest key is one of them
  double from_alibi = 0;
  for (const std::int64_t j : ends)
    from_alibi = larger(from_alibi, reference::alibi(p_, at.b, at.h, at.i, j));
  most += from_alibi;
  if (p_.bias) {
    double bias = -infinity;
    for (std::int64_t j = 0; j < s.keys; ++j)
      bias = larger(bias, reference::read(*p_.bias, at.b, at.h, s.first_query + at.i, j));
    most += bias;
  }
  return p_.sink ? larger(most, reference::read(*p_.sink, at.b, at.h, 0, 0)) : most;
}

// What the values that are no numbers come to, in the dimensions that were left: NaN, an infinity, or 0 where
// there is none.
struct Sums {
  explicit Sums(std::vector<std::int64_t> left)
      : dims(std::move(left)), of(dims.size()), unsure(dims.size()) {}

  // Of a key that the row sees. Its weight is known not to be 0, or to be, or neither is known.
  enum class Weight : std::uint8_t { some, none, unknown };
  void add(const std::vector<double>& value, Weight weight) {
    for (std::size_t n = 0; n < dims.size(); ++n) {
      const double x = value[static_cast<std::size_t>(dims[n])];
      if (is_number(x)) continue;
      of[n] += weight == Weight::none ? nan : x;
      unsure[n] = unsure[n] || weight == Weight::unknown;
    }
  }

  // No other value changes anything.
  bool are_nan() const {
    return std::all_of(of.begin(), of.end(), [](double x) { return std::isnan(x); });
  }
  // 0 times an infinity is NaN: what is NaN otherwise is so whatever the weights are.
  bool are_decided() const {
    for (std::size_t n = 0; n < dims.size(); ++n)
      if (is_number(of[n]) || (unsure[n] && !std::isnan(of[n]))) return false;
    return true;
  }

  std::vector<std::int64_t> dims;
  std::vector<double> of;
  std::vector<bool> unsure;
};

bool Poison::settle(const UnfinishedRow& at) const {
  const Head* head = head_of(at);
  if (!at.only_out || !head || head->poisoned.empty()) return false;
  const MutableView& out = p_.outputs.out;
  const std::int64_t row = p_.sequences[static_cast<std::size_t>(at.b)].first_query + at.i;
  std::vector<std::int64_t> left;
  for (std::int64_t d = 0; d < p_.value_dim; ++d)
    if (!is_number(reference::read(out, at.b, at.h, row, d))) left.push_back(d);
  Sums sums(std::move(left));

  const std::vector<double> q = query(at);
  const double most = head->largest_key ? highest(at, *head, q) : nan;
  constexpr double far = 600;  // e^-600 divided by all keys there can be is a double
  const TokenRows keys = rows(*head, Side::keys), values = rows(*head, Side::values);
  for (const std::int64_t j : head->poisoned) {
    const double score = reference::score(p_, q.data(), keys(j).data(), at.b, at.h, at.i, j).biased;
    if (score == -infinity) continue;  // S4
    const bool is_dropped = p_.options.dropout && reference::dropped(p_, at.b, at.h, at.i, j);
    sums.add(values(j), is_dropped            ? Sums::Weight::none
                        : score - most > -far ? Sums::Weight::some
                                              : Sums::Weight::unknown);
    if (sums.are_nan()) break;
  }
  if (!sums.are_decided()) return false;
  for (std::size_t n = 0; n < sums.dims.size(); ++n)
    reference::write(out, at.b, at.h, row, sums.dims[n], sums.of[n]);
  return true;
}

}  // namespace

void settle_poisoned(const Problem& problem, std::vector<UnfinishedRow>& left) {
  const Poison poison(problem, left);
  std::vector<unsigned char> is_settled(left.size());
  threads::throwing_parallel_for(left.size(),
                                 [&](std::size_t n) { is_settled[n] = poison.settle(left[n]) ? 1 : 0; });
  std::size_t n = 0;
  std::erase_if(left, [&](const UnfinishedRow&) { return is_settled[n++] != 0; });
}

}  // namespace heed::planning
