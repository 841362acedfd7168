// SPDX-License-Identifier: Apache-2.0
#include "cache/store.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "heed/half.hpp"

namespace heed::cache {
namespace {

constexpr std::int64_t tile = PageLayout::tile;

template <class Body>
void with_source(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f16:
      return body(f16{});
    case DType::bf16:
      return body(bf16{});
    case DType::f64:
      return;  // refused
  }
}

template <class Body>
void with_stored(CacheType type, const Body& body) {
  switch (type) {
    case CacheType::f32:
      return body(float{});
    case CacheType::f16:
      return body(f16{});
    case CacheType::bf16:
      return body(bf16{});
    case CacheType::int8:
      return body(std::int8_t{});
  }
}

// 16 dimensions of a row: where they lie, or a copy with zeros beyond the row's end.
template <class Source>
struct Chunk {
  Source copy[tile];
  const Source* x = copy;

  Chunk(const Source* row, std::int64_t stride, std::int64_t count) {
    if (count == tile && stride == 1) {
      x = row;
      return;
    }
    for (std::int64_t i = 0; i < tile; ++i) copy[i] = i < count ? row[i * stride] : Source{};
  }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
};

// To nearest even. The divisor is the scale, or 1 where that is 0 and every element rounds to 0.
std::int8_t quantized(float x, float divisor) {
  constexpr float shift = 0x1.8p23f;  // from here on floats are whole numbers
  const auto steps = static_cast<std::int32_t>(x / divisor + shift - shift);
  return static_cast<std::int8_t>(std::clamp(steps, -127, 127));
}

// Functions of their own over plain numbers: inlined, or over structs, these loops are unrolled and not made
// into vectors.
[[gnu::noinline]] void round_16(const float* __restrict x, float, f16* __restrict rounded) {
  std::uint16_t bits[tile];
  for (std::int64_t i = 0; i < tile; ++i) bits[i] = from_float<f16>(x[i]).bits;
  std::memcpy(rounded, bits, sizeof bits);
}
[[gnu::noinline]] void round_16(const float* __restrict x, float, bf16* __restrict rounded) {
  std::uint16_t bits[tile];
  for (std::int64_t i = 0; i < tile; ++i) bits[i] = from_float<bf16>(x[i]).bits;
  std::memcpy(rounded, bits, sizeof bits);
}
[[gnu::noinline]] void round_16(const float* __restrict x, float divisor, std::int8_t* __restrict rounded) {
  for (std::int64_t i = 0; i < tile; ++i) rounded[i] = quantized(x[i], divisor);
}
void round_16(const float* x, float, float* rounded) { std::memcpy(rounded, x, tile * sizeof *x); }

template <class Stored, class Source>
void round_chunk(const Source* x, float divisor, Stored* rounded) {
  if constexpr (std::is_same_v<Stored, Source>) {
    std::memcpy(rounded, x, tile * sizeof *x);
  } else if constexpr (std::is_same_v<Source, float>) {
    round_16(x, divisor, rounded);
  } else {
    float wide[tile];
    for (std::int64_t i = 0; i < tile; ++i) wide[i] = to_float(x[i]);
    round_16(wide, divisor, rounded);
  }
}

// The bits of the largest magnitude, in 16 lanes. Magnitudes are ordered as their bits are; NaN comes last.
template <class Source>
std::uint32_t largest_magnitude(const Source* row, std::int64_t stride, std::int64_t dim) {
  std::uint32_t largest[tile] = {};
  for (std::int64_t d = 0; d < dim; d += tile) {
    const Chunk<Source> chunk(row + d * stride, stride, std::min(tile, dim - d));
    for (std::int64_t i = 0; i < tile; ++i)
      largest[i] = std::max(largest[i], std::bit_cast<std::uint32_t>(to_float(chunk.x[i])) & 0x7fffffffu);
  }
  return *std::max_element(largest, largest + tile);
}

// Where a side of a head's part lies, its first scale, and how many dimensions it has.
struct Place {
  std::int64_t elements_at, scales_at, dim;

  Place(const PageLayout& layout, Side side)
      : elements_at(side == Side::keys ? 0 : layout.values_at()),
        scales_at(side == Side::keys ? layout.key_scales_at() : layout.value_scales_at()),
        dim(side == Side::keys ? layout.dim : layout.value_dim) {}
};

template <class Stored, class Source>
void store_row(const Slots& slots, Side side, std::int64_t token, const Source* row, std::int64_t stride) {
  const PageLayout& layout = *slots.layout;
  const Place place(layout, side);
  auto* part = const_cast<unsigned char*>(slots.part);
  float divisor = 1;
  if constexpr (std::is_same_v<Stored, std::int8_t>) {
    const float scale = scale_for(std::bit_cast<float>(largest_magnitude(row, stride, place.dim)));
    std::memcpy(part + place.scales_at + token * 4, &scale, sizeof scale);
    if (scale != 0) divisor = scale;
  }
  auto* elements = reinterpret_cast<Stored*>(part + place.elements_at);
  for (std::int64_t d = 0; d < place.dim; d += tile) {
    const std::int64_t count = std::min(tile, place.dim - d);
    const Chunk<Source> chunk(row + d * stride, stride, count);
    Stored rounded[tile];
    round_chunk(chunk.x, divisor, rounded);
    if (side == Side::keys) {
      Stored* column = elements + layout.key_element(token, d);
      for (std::int64_t i = 0; i < count; ++i) column[i * tile] = rounded[i];
    } else {
      std::memcpy(elements + layout.value_element(token, d), rounded, sizeof rounded);
    }
  }
}

}  // namespace

// Largest magnitude / 127, unless 127 of it would be infinite: then the float before.
float scale_for(float largest) noexcept {
  const float scale = largest / 127;
  return std::isinf(scale * 127) ? std::nextafter(scale, 0.0f) : scale;
}

void store_tokens(const Slots& slots, Side side, const Rows& rows) noexcept {
  with_stored(slots.type, [&]<class Stored>(Stored) {
    with_source(rows.dtype, [&]<class Source>(Source) {
      const auto* row = static_cast<const Source*>(rows.data);
      for (std::int64_t t = 0; t < slots.count; ++t, row += rows.token_stride)
        store_row<Stored>(slots, side, slots.first + t, row, rows.dim_stride);
    });
  });
}

void fetch_token(const Slots& slots, Side side, float* into) noexcept {
  const PageLayout& layout = *slots.layout;
  const Place place(layout, side);
  with_stored(slots.type, [&]<class Stored>(Stored) {
    const auto* elements = reinterpret_cast<const Stored*>(slots.part + place.elements_at);
    float scale = 1;
    if constexpr (std::is_same_v<Stored, std::int8_t>)
      std::memcpy(&scale, slots.part + place.scales_at + slots.first * 4, sizeof scale);
    for (std::int64_t d = 0; d < place.dim; ++d) {
      const Stored x = elements[side == Side::keys ? layout.key_element(slots.first, d)
                                                   : layout.value_element(slots.first, d)];
      if constexpr (std::is_same_v<Stored, std::int8_t>) {
        into[d] = static_cast<float>(x) * scale;
      } else {
        into[d] = to_float(x);
      }
    }
  });
}

void copy_tokens(const PageLayout& layout, const unsigned char* from, unsigned char* into,
                 std::int64_t count) noexcept {
  const auto copy = [&](std::int64_t at, std::int64_t bytes) {
    std::memcpy(into + at, from + at, static_cast<std::size_t>(bytes));
  };
  const std::int64_t whole = count / tile * tile, rest = count % tile, bytes = layout.element_bytes;
  for (std::int64_t h = 0; h < layout.kv_heads; ++h) {
    const std::int64_t keys = h * layout.head_bytes(), values = keys + layout.values_at();
    copy(keys, whole * layout.dim * bytes);
    copy(values, whole * layout.value_width() * bytes);
    for (std::int64_t d = 0; rest > 0 && d < layout.dim; ++d)
      copy(keys + layout.key_element(whole, d) * bytes, rest * bytes);
    for (std::int64_t d = 0; rest > 0 && d < layout.value_dim; d += tile)
      copy(values + layout.value_element(whole, d) * bytes, rest * tile * bytes);
    if (!layout.is_quantized) continue;
    copy(keys + layout.key_scales_at(), count * 4);
    copy(keys + layout.value_scales_at(), count * 4);
  }
}

void widen(const Rows& rows, RowsSize size, float* into) noexcept {
  with_source(rows.dtype, [&]<class Source>(Source) {
    const auto* row = static_cast<const Source*>(rows.data);
    for (std::int64_t t = 0; t < size.tokens; ++t, row += rows.token_stride, into += size.dim)
      for (std::int64_t d = 0; d < size.dim; ++d) into[d] = to_float(row[d * rows.dim_stride]);
  });
}

std::int64_t find_token_not_finite(const Rows& rows, RowsSize size) noexcept {
  std::int64_t found = -1;
  with_source(rows.dtype, [&]<class Source>(Source) {
    const auto* row = static_cast<const Source*>(rows.data);
    for (std::int64_t t = 0; t < size.tokens && found < 0; ++t, row += rows.token_stride)
      if (largest_magnitude(row, rows.dim_stride, size.dim) >= 0x7f800000u) found = t;
  });
  return found;
}

}  // namespace heed::cache
