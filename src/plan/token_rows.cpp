// SPDX-License-Identifier: Apache-2.0
#include "plan/token_rows.hpp"

#include <algorithm>
#include <bit>

#include "cache/types.hpp"
#include "heed/half.hpp"
#include "reference/row.hpp"

namespace heed::planning {
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
  const PageLayout& layout = p_.reading->layout();
  const PagedSequence sequence = p_.reading->sequence(p_.sequences[static_cast<std::size_t>(b_)].in_cache);
  return sequence.table[j / layout.page_size] + kv_head_ * layout.head_bytes();
}

std::vector<double> TokenRows::operator()(std::int64_t j) const {
  std::vector<double> row;
  row.reserve(static_cast<std::size_t>(dim_));
  if (p_.reading) {
    std::vector<float> token(static_cast<std::size_t>(dim_));
    const PageLayout& layout = p_.reading->layout();
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
  const PageLayout& layout = p_.reading->layout();
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
  const DType dtype = p_.reading ? cache::dtype_of(p_.cache_type) : view_of(p_, side_).dtype;
  return dtype == DType::f32 ? largest_of_type<float>(dtype, begin, end)
                             : largest_of_type<std::uint16_t>(dtype, begin, end);
}

}  // namespace heed::planning
