// SPDX-License-Identifier: Apache-2.0
// Keys and values as tensors of any strides.
#pragma once
#include <cstdint>

#include "general/source.cuh"

namespace heed::cuda::general {

// 16 bytes of a row's elements from `d` on, one by one: where rows do not lie in 16-byte pieces.
inline __device__ __noinline__ void copy_elements(SharedAddress to, const Row& row, int d, int dim) {
  const auto* from = static_cast<const std::uint16_t*>(row.data) + row.first;
  std::uint32_t x[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int e = d + 2 * n;
    const std::uint32_t low = e < dim ? from[e * row.step] : 0,
                        high = e + 1 < dim ? from[(e + 1) * row.step] : 0;
    x[n] = low | high << 16;
  }
  store16(to, x);
}

// How the threads of a block copy rows of `width` numbers: each has one piece of 16 bytes of every step-th
// row.
template <int threads, int rows, int width, int pitch>
struct RowCopy {
  static constexpr int pieces = width / 8, step = threads / pieces, copies = (rows + step - 1) / step;
  static constexpr bool is_even =
      threads % pieces == 0 && rows % step == 0;  // every thread has a row each time

  HEED_DEVICE static int piece() { return thread_index() % pieces; }
  HEED_DEVICE static int row(int n) { return thread_index() / pieces + n * step; }
  HEED_DEVICE static bool has(int n) { return is_even || (thread_index() < pieces * step && row(n) < rows); }
  HEED_DEVICE static SharedAddress place(int n) {
    return static_cast<SharedAddress>(row(n) * pitch + piece() * 16);
  }

  // from(r) is where row r lies, and is_there(r) whether it is read.
  template <class RowAt, class IsThere>
  HEED_DEVICE static void run(SharedAddress to, int dim, bool in_16, const RowAt& from,
                              const IsThere& is_there) {
    const int d = piece() * 8;
#pragma unroll 4
    for (int n = 0; n < copies; ++n) {
      if (!has(n)) continue;
      const bool is_read = d < dim && is_there(row(n));
      const Row at = from(is_read ? row(n) : -1);
      if (in_16)
        prefetch16(to + place(n), static_cast<const std::uint16_t*>(at.data) + at.first + (is_read ? d : 0),
                   is_read);
      else if (is_read)
        copy_elements(to + place(n), at, d, dim);
      else
        store16(to + place(n), {0, 0, 0, 0});
    }
  }
};

// K and V as tensors of any strides.
template <class Shape>
class Arrays {
  using Keys = RowCopy<Shape::threads, Shape::tile_keys, Shape::dim, Shape::query_pitch>;
  using Values = RowCopy<Shape::threads, Shape::tile_keys, Shape::value_dim, Shape::value_pitch>;

 public:
  static constexpr bool keys_are_transposed = false, is_quantized = false;
  static constexpr int key_bytes = Shape::tile_keys * Shape::query_pitch,
                       slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int extra_bytes = 0,
                       copies = 2 * (Keys::copies > Values::copies ? Keys::copies : Values::copies);

  HEED_DEVICE Arrays(const Call& call, const Plan& launch, const BlockFacts<Shape>& of, unsigned char*)
      : c(call),
        plan(launch),
        block(of),
        has_key(Keys::piece() * 8 < static_cast<int>(c.dim)),
        has_value(Values::piece() * 8 < static_cast<int>(c.value_dim)),
        whole_end(plan.k_in_16 && plan.v_in_16 ? of.keys.end / Shape::tile_keys : 0) {}

  HEED_DEVICE void begin(int) {}
  HEED_DEVICE void look_up(int, int, int) {}

  HEED_DEVICE void prefetch(int tile, int, SharedAddress slot) {
    const int first = tile * Shape::tile_keys;
    copy_rows<Keys>(slot, block.first_key, c.k, static_cast<int>(c.dim), plan.k_in_16, first);
    copy_rows<Values>(slot + key_bytes, block.first_value, c.v, static_cast<int>(c.value_dim), plan.v_in_16,
                      first);
  }

  HEED_DEVICE bool aim(int tile, int, SharedAddress slot) {
    const int first = tile * Shape::tile_keys;
    to = slot + Keys::place(0);
    value_to = Shape::dim == Shape::value_dim ? to + key_bytes : slot + key_bytes + Values::place(0);
    key_at = block.first_key + std::int64_t{first + Keys::row(0)} * plan.key_stride + Keys::piece() * 8;
    value_at =
        block.first_value + std::int64_t{first + Values::row(0)} * plan.value_stride + Values::piece() * 8;
    return tile < whole_end;
  }
  // The n-th of keys and values in turn. Every address is made anew: one that changed in place would wait for
  // the copy before.
  HEED_DEVICE void copy(int n, bool is_wanted) {
    const int m = n / 2;
    if (n % 2 == 0 && m < Keys::copies)
      prefetch16_if(is_wanted && has_key && Keys::has(m), to + m * Keys::step * Shape::query_pitch,
                    key_at + m * (Keys::step * plan.key_stride));
    else if (n % 2 != 0 && m < Values::copies)
      prefetch16_if(is_wanted && has_value && Values::has(m),
                    value_to + m * Values::step * Shape::value_pitch,
                    value_at + m * (Values::step * plan.value_stride));
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  template <class Rows>
  HEED_DEVICE void copy_rows(SharedAddress slot, const std::uint16_t* from, const Tensor& t, int dim,
                             bool in_16, int first) {
    Rows::run(
        slot, dim, in_16,
        [&](int r) -> Row { return {from, r < 0 ? 0 : (first + r) * t.stride.length, t.stride.dim, t.type, 0}; },
        [&](int r) { return first + r >= block.keys.begin && first + r < block.keys.end; });
  }

  const Call& c;
  const Plan& plan;
  const BlockFacts<Shape>& block;
  const bool has_key, has_value;  // whether this thread's piece of a row has numbers
  const int whole_end;            // of the tiles whose rows are all there; the first tile is copied at once
  SharedAddress to = 0, value_to = 0;
  const std::uint16_t *key_at = nullptr, *value_at = nullptr;  // that this thread copies next
};

}  // namespace heed::cuda::general
