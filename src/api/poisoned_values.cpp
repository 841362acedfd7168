// SPDX-License-Identifier: Apache-2.0
// Values that are NaN or infinite: where they are among the keys of a head, and what they make of the rows
// that see them, without computing a row in 64 bits.
#include "api/poisoned_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/layout.hpp"
#include "cache/store.hpp"
#include "heed/half.hpp"
#include "problem/problem.hpp"
#include "reference/row.hpp"
#include "threads/pool.hpp"

namespace heed::api {

class TokenRows {
 public:
  // Side::keys or Side::values of a problem that a CPU reads.
  TokenRows(const Problem&, cache::Side, std::int64_t b, std::int64_t kv_head);

  std::int64_t count() const { return count_; }
  std::vector<double> operator()(std::int64_t j) const;

  // The largest magnitude of each dimension in rows [begin, end), where `begin` is a multiple of 16: NaN
  // where one is. At most once through memory, and nothing but integers are compared. In pages tokens of the
  // same tile may take part that are not in the sequence, or no longer.
  std::vector<float> largest(std::int64_t begin, std::int64_t end) const;

 private:
  // Elements are floats, or halves as whole numbers, compared as integers of the same size.
  template <class Element>
  using Magnitudes = std::vector<std::conditional_t<sizeof(Element) == 4, std::int32_t, std::int16_t>>;

  template <class Element>
  std::vector<float> largest_of_type(DType, std::int64_t begin, std::int64_t end) const;
  template <class Element>
  void take_rows(std::int64_t begin, std::int64_t end, Magnitudes<Element>& largest) const;
  template <class Element>
  void take_tile(std::int64_t first, Magnitudes<Element>& largest) const;

  const unsigned char* part_of_page(std::int64_t j) const;

  const Problem& p_;
  const cache::Side side_;
  const std::int64_t b_, kv_head_, dim_, count_;
};

namespace {

using cache::Side;

constexpr std::int64_t tile = PageLayout::tile;

// Magnitudes are ordered as their bits are; NaN comes last. Both types of 16 bits are whole numbers here.
std::int32_t magnitude(float x) { return std::bit_cast<std::int32_t>(x) & 0x7fffffff; }
std::int16_t magnitude(std::uint16_t x) { return static_cast<std::int16_t>(x & 0x7fff); }
template <class Element>
using Bits = decltype(magnitude(Element{}));

// Sixteen at a time, so many that compilers make vectors of it: of each over rows `step` apart, or of all.
template <class Element>
void take_each(const Element* x, std::int64_t rows, std::int64_t step, Bits<Element>* largest) {
  Bits<Element> most[tile];
  std::copy_n(largest, tile, most);
  for (; rows > 0; --rows, x += step)
    for (std::int64_t n = 0; n < tile; ++n) most[n] = std::max(most[n], magnitude(x[n]));
  std::copy_n(most, tile, largest);
}
template <class Element>
Bits<Element> largest_of(const Element* x) {
  Bits<Element> largest = 0;
  for (std::int64_t n = 0; n < tile; ++n) largest = std::max(largest, magnitude(x[n]));
  return largest;
}

float in_f32(DType dtype, std::int32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return dtype == DType::f32    ? std::bit_cast<float>(bits)
         : dtype == DType::bf16 ? to_float(std::bit_cast<bf16>(half))
                                : to_float(std::bit_cast<f16>(half));
}

const View& view_of(const Problem& p, Side side) { return side == Side::keys ? p.inputs.k : p.inputs.v; }

}  // namespace

TokenRows::TokenRows(const Problem& p, Side side, std::int64_t b, std::int64_t kv_head)
    : p_(p),
      side_(side),
      b_(b),
      kv_head_(kv_head),
      dim_(side == Side::keys ? p.dim : p.value_dim),
      count_(p.sequences[static_cast<std::size_t>(b)].keys) {}

const unsigned char* TokenRows::part_of_page(std::int64_t j) const {
  const PageLayout& layout = p_.layout;
  const PagedSequence& sequence = p_.cached[static_cast<std::size_t>(b_)];
  return sequence.table[j / layout.page_size] + kv_head_ * layout.head_bytes();
}

std::vector<double> TokenRows::operator()(std::int64_t j) const {
  std::vector<double> row;
  row.reserve(static_cast<std::size_t>(dim_));
  if (p_.reading) {
    std::vector<float> token(static_cast<std::size_t>(dim_));
    const PageLayout& layout = p_.layout;
    cache::fetch_token({&layout, p_.cache_type, part_of_page(j), j % layout.page_size, 1}, side_,
                       token.data());
    row.assign(token.begin(), token.end());
    return row;
  }
  const std::int64_t first = p_.sequences[static_cast<std::size_t>(b_)].first_key;
  for (std::int64_t d = 0; d < dim_; ++d)
    row.push_back(reference::read(view_of(p_, side_), b_, kv_head_, first + j, d));
  return row;
}

template <class Element>
void TokenRows::take_rows(std::int64_t begin, std::int64_t end, Magnitudes<Element>& largest) const {
  const View& view = view_of(p_, side_);
  const Strides& stride = view.stride;
  const std::int64_t first = p_.sequences[static_cast<std::size_t>(b_)].first_key + begin;
  const Element* x = static_cast<const Element*>(view.data) + b_ * stride.batch + kv_head_ * stride.heads +
                     first * stride.length;
  std::int64_t d = 0;
  for (; stride.dim == 1 && d + tile <= dim_; d += tile)
    take_each(x + d, end - begin, stride.length, largest.data() + d);
  for (; d < dim_; ++d)
    for (std::int64_t j = 0; j < end - begin; ++j) {
      Bits<Element>& most = largest[static_cast<std::size_t>(d)];
      most = std::max(most, magnitude(x[j * stride.length + d * stride.dim]));
    }
}

// Of the sixteen tokens of a page that `first` begins.
template <class Element>
void TokenRows::take_tile(std::int64_t first, Magnitudes<Element>& largest) const {
  const PageLayout& layout = p_.layout;
  const std::int64_t token = first % layout.page_size;
  const unsigned char* part = part_of_page(first);
  if (side_ == Side::keys) {
    const auto* x = reinterpret_cast<const Element*>(part) + layout.key_element(token, 0);
    for (std::int64_t d = 0; d < dim_; ++d, x += tile) {
      Bits<Element>& most = largest[static_cast<std::size_t>(d)];
      most = std::max(most, largest_of(x));
    }
    return;
  }
  const auto* x =
      reinterpret_cast<const Element*>(part + layout.values_at()) + layout.value_element(token, 0);
  for (std::int64_t d = 0; d < dim_; d += tile, x += tile * tile)
    take_each(x, tile, tile, largest.data() + d);
}

template <class Element>
std::vector<float> TokenRows::largest_of_type(DType dtype, std::int64_t begin, std::int64_t end) const {
  Magnitudes<Element> bits(static_cast<std::size_t>(PageLayout::whole(dim_, tile)));
  if (p_.reading)
    for (std::int64_t j = begin; j < end; j += tile) take_tile<Element>(j, bits);
  else
    take_rows<Element>(begin, end, bits);
  std::vector<float> largest(static_cast<std::size_t>(dim_));
  for (std::size_t d = 0; d < largest.size(); ++d) largest[d] = in_f32(dtype, bits[d]);
  return largest;
}

std::vector<float> TokenRows::largest(std::int64_t begin, std::int64_t end) const {
  const DType dtype = p_.reading ? problem::dtype_of(p_.cache_type) : view_of(p_, side_).dtype;
  return dtype == DType::f32 ? largest_of_type<float>(dtype, begin, end)
                             : largest_of_type<std::uint16_t>(dtype, begin, end);
}

namespace {

using cache::Side;
using reference::UnfinishedRow;

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

bool is_number(double x) { return std::isfinite(x); }

// A KV head of a sequence that rows were left of.
struct Head {
  std::int64_t b, kv_head;
  std::vector<std::int64_t> poisoned{};               // keys whose values are not all numbers, in order
  std::vector<std::vector<double>> keys{}, values{};  // rows of the first few of these
  bool has_output_row = false, has_open_row = false;  // of which the output alone is left, or more
  std::vector<std::int64_t> wild_keys{};  // then: keys that are not all numbers themselves, in order
  std::optional<std::vector<float>> largest_key{};  // magnitudes in each dimension, where a value is infinite
};

// Keys at which a thread begins.
struct Stretch {
  std::size_t head;
  std::int64_t begin, end;
};

class Poison {
 public:
  Poison(const Problem& problem, const std::vector<UnfinishedRow>& unfinished)
      : p_(problem), heads_(heads_of(unfinished)) {
    find_poisoned();
    find_largest_keys();
  }

  // Whether what was left of a row is decided; then it is written.
  bool settle(const UnfinishedRow&) const;

 private:
  std::vector<Head> heads_of(const std::vector<UnfinishedRow>& unfinished) const {
    if (p_.reading && p_.cache_type == CacheType::int8) return {};  // it holds nothing but numbers
    std::vector<Head> all;
    for (std::int64_t n = 0; n < p_.batch * p_.kv_heads; ++n) {
      Head& head = all.emplace_back();
      head.b = n / p_.kv_heads, head.kv_head = n % p_.kv_heads;
    }
    for (const UnfinishedRow& row : unfinished) {
      Head& head = all[static_cast<std::size_t>(row.b * p_.kv_heads + p_.kv_head(row.h))];
      (row.only_out ? head.has_output_row : head.has_open_row) = true;
    }
    std::erase_if(all, [](const Head& head) { return !head.has_output_row && !head.has_open_row; });
    return all;
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

  // Finds the rows of K or V that are not all numbers, of the heads that are taken.
  template <class Taken>
  void find(Side side, std::vector<std::int64_t> Head::* into, const Taken& taken) {
    const std::vector<Stretch> all = stretches(taken);
    std::vector<std::vector<std::int64_t>> found(all.size());
    threads::throwing_parallel_for(all.size(), [&](std::size_t n) {
      const TokenRows tokens = rows(heads_[all[n].head], side);
      const auto are_numbers = [](const auto& row) { return std::all_of(row.begin(), row.end(), is_number); };
      constexpr std::int64_t few = 64;
      for (std::int64_t j = all[n].begin; j < all[n].end; j += few) {
        const std::int64_t end = std::min(j + few, all[n].end);
        if (are_numbers(tokens.largest(j, end))) continue;
        for (std::int64_t one = j; one < end; ++one)
          if (!are_numbers(tokens(one))) found[n].push_back(one);
      }
    });
    for (std::size_t n = 0; n < all.size(); ++n) {
      std::vector<std::int64_t>& keys = heads_[all[n].head].*into;
      keys.insert(keys.end(), found[n].begin(), found[n].end());
    }
  }

  void find_poisoned() {
    find(Side::values, &Head::poisoned, [](const Head& head) { return head.has_output_row; });
    if (!p_.options.dropout && !p_.outputs.weights && !p_.outputs.scores.into)
      find(Side::keys, &Head::wild_keys, [](const Head& head) { return head.has_open_row; });
    // Of many such keys the first decide a row, or it is sooner computed than decided.
    constexpr std::size_t few = 8;
    for (Head& head : heads_)
      for (std::size_t n = 0; n < std::min(few, head.poisoned.size()); ++n) {
        head.keys.push_back(rows(head, Side::keys)(head.poisoned[n]));
        head.values.push_back(rows(head, Side::values)(head.poisoned[n]));
      }
  }

  static bool has_infinity(const Head& head) {
    return std::ranges::any_of(head.values, [](const std::vector<double>& value) {
      return std::ranges::any_of(value, [](double x) { return std::isinf(x); });
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

  bool settle_by_key(const UnfinishedRow&, const Head&) const;
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
  explicit Sums(std::vector<std::int64_t> dims_of_row)
      : dims(std::move(dims_of_row)), of(dims.size()), unsure(dims.size()) {}

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

// A visible score of NaN or +inf makes the sum of the weights NaN, and so all that the row has. One of the
// first keys that may have such a score nearly always does.
bool Poison::settle_by_key(const UnfinishedRow& at, const Head& head) const {
  if (head.wild_keys.empty()) return false;
  const std::int64_t begin = at.i + p_.sequences[static_cast<std::size_t>(at.b)].first_offset;
  const std::vector<double> q = query(at);
  const TokenRows keys = rows(head, Side::keys);
  auto j = std::ranges::lower_bound(head.wild_keys, begin);
  for (int few = 8; few > 0 && j != head.wild_keys.end(); --few, ++j) {
    if (reference::score(p_, q.data(), keys(*j).data(), at.b, at.h, at.i, *j).biased < infinity) continue;
    reference::Row row;
    row.out.assign(static_cast<std::size_t>(p_.value_dim), nan);
    row.log_sum_exp = nan;
    reference::complete(p_, at, row);
    return true;
  }
  return false;
}

bool Poison::settle(const UnfinishedRow& at) const {
  const Head* head = head_of(at);
  if (head && !at.only_out) return settle_by_key(at, *head);
  if (!at.only_out || !head || head->poisoned.empty()) return false;
  const MutableView& out = p_.outputs.out;
  const std::int64_t row = p_.sequences[static_cast<std::size_t>(at.b)].first_query + at.i;
  std::vector<std::int64_t> dims_of_row;
  for (std::int64_t d = 0; d < p_.value_dim; ++d)
    if (!is_number(reference::read(out, at.b, at.h, row, d))) dims_of_row.push_back(d);
  Sums sums(std::move(dims_of_row));

  const std::vector<double> q = query(at);
  const double most = head->largest_key ? highest(at, *head, q) : nan;
  constexpr double far = 600;  // e^-600 divided by all keys there can be is a double
  for (std::size_t n = 0; n < head->keys.size(); ++n) {
    const std::int64_t j = head->poisoned[n];
    const double score = reference::score(p_, q.data(), head->keys[n].data(), at.b, at.h, at.i, j).biased;
    if (score == -infinity) continue;  // S4
    const bool is_dropped = p_.options.dropout && reference::dropped(p_, at.b, at.h, at.i, j);
    sums.add(head->values[n], is_dropped            ? Sums::Weight::none
                              : score - most > -far ? Sums::Weight::some
                                                    : Sums::Weight::unknown);
    if (sums.are_nan()) break;
  }
  const bool was_any_left_out = head->keys.size() < head->poisoned.size();
  if (was_any_left_out ? !sums.are_nan() : !sums.are_decided()) return false;
  for (std::size_t n = 0; n < sums.dims.size(); ++n)
    reference::write(out, at.b, at.h, row, sums.dims[n], sums.of[n]);
  return true;
}

}  // namespace

void settle_poisoned(const Problem& problem, std::vector<UnfinishedRow>& unfinished) {
  const Poison poison(problem, unfinished);
  std::vector<unsigned char> is_settled(unfinished.size());
  threads::throwing_parallel_for(
      unfinished.size(), [&](std::size_t n) { is_settled[n] = poison.settle(unfinished[n]) ? 1 : 0; });
  std::size_t n = 0;
  std::erase_if(unfinished, [&](const UnfinishedRow&) { return is_settled[n++] != 0; });
}

}  // namespace heed::api
