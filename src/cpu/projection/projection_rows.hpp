// SPDX-License-Identifier: Apache-2.0
// The rows of x and y of projections where they lie, which panels of weights a task has of each, and how a
// panel of outputs gets to y: the bias is added, and the sum is rounded once to y's type.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/tile/pack.hpp"
#include "heed/half.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <int outputs>
class ProjectedRows {
 public:
  explicit ProjectedRows(const Linear& linear) : t(linear) {}

  // Map after map: calls multiply(map, first, end) for its panels [first, end) that the task has, and write()
  // means that map.
  template <class Multiply>
  void for_each_map(const LinearPart& part, const Multiply& multiply) {
    std::int64_t first = part.first_panel, end = part.end_panel;
    for (std::int64_t n = 0; n < t.map_count; ++n) {
      const std::int64_t panels = (t.maps[n].out + outputs - 1) / outputs;
      if (first < panels && end > 0) {
        begin(t.maps[n], part);  // fault: one-y-for-all
        multiply(t.maps[n], max(first, 0), min(end, panels));
      }
      first -= panels;  // fault: panels-of-the-second-map
      end -= panels;
    }
  }

  Row at(const Tensor& tensor, std::int64_t row, std::int64_t head) const {
    return row_of(tensor, row / t.length, head, row % t.length);
  }

  // Writes values(rows, outputs) of one panel, for up to so many of the task's rows from the first one on.
  // Outputs of one head lie together. Compiled once, not at every call.
  [[gnu::noinline]] void write(std::int64_t panel, std::int64_t first, std::int64_t max_rows,
                               const float* values) const {
    const std::int64_t begin = panel * outputs, end = min(begin + outputs, map->out);
    for (std::int64_t n = begin; n < end;) {
      const std::int64_t head = n / map->y_dim, next = min(end, (head + 1) * map->y_dim);
      const Tensor& y = map->y;
      write_stretch({.first_row = first,
                     .rows = min(max_rows, count - first),
                     .width = next - n,
                     .place = head * y.stride.heads + (n - head * map->y_dim) * y.stride.dim,
                     .values = values + n - begin,
                     .bias = map->bias ? map->bias + n : nullptr});
      n = next;
    }
  }

 private:
  void begin(const LinearMap& its, const LinearPart& part) {
    map = &its;
    count = part.rows;
    for (std::int64_t r = 0; r < count; ++r) first_of_row[r] = at(its.y, part.first_row + r, 0).first;
  }

  // Outputs of some rows that lie in one head, `place` elements beyond the first of the row.
  struct Stretch {
    std::int64_t first_row, rows, width, place;
    const float *values, *bias;
  };

  void write_stretch(const Stretch& of) const {
    const Tensor& y = map->y;
    void* const data = const_cast<void*>(y.data);
    if (y.stride.dim != 1)
      for (std::int64_t r = 0; r < of.rows; ++r) {
        const Row row{y.data, first_of_row[of.first_row + r] + of.place, y.stride.dim, y.type};
        for (std::int64_t i = 0; i < of.width; ++i) cpu::HEED_THIS_TARGET::write(row, i, with_bias(of, r, i));
      }
    else if (y.type == Type::f32)
      write_rows(of, static_cast<float*>(data), [](float x) { return x; });
    else if (y.type == Type::bf16)
      write_rows(of, static_cast<std::uint16_t*>(data), [](float x) { return from_float<bf16>(x).bits; });
    else
      write_rows(of, static_cast<std::uint16_t*>(data), [](float x) { return from_float<f16>(x).bits; });
  }

  static float with_bias(const Stretch& of, std::int64_t r, std::int64_t i) {
    const float x = of.values[r * outputs + i];
    return of.bias ? x + of.bias[i] : x;
  }

  // Some at a time by copies of their own, which nothing that is written can change: so compilers know that
  // they are a vector.
  template <class T, class Round>
  void write_rows(const Stretch& of, T* y, const Round& round) const {
    constexpr int together = outputs % 32 == 0 ? 32 : outputs % 16 == 0 ? 16 : outputs % 8 == 0 ? 8 : 4;
    for (std::int64_t r = 0; r < of.rows; ++r) {
      const float* const from = of.values + r * outputs;
      T* const to = y + first_of_row[of.first_row + r] + of.place;
      std::int64_t i = 0;
      for (; i + together <= of.width; i += together) {
        float x[together];
        T rounded[together];
        __builtin_memcpy(x, from + i, sizeof x);
        for (int n = 0; of.bias && n < together; ++n) x[n] += of.bias[i + n];
        for (int n = 0; n < together; ++n) rounded[n] = round(x[n]);
        __builtin_memcpy(to + i, rounded, sizeof rounded);
      }
      for (; i < of.width; ++i) to[i] = round(with_bias(of, r, i));
    }
  }

  const Linear& t;
  const LinearMap* map = nullptr;
  std::int64_t count = 0;
  std::int64_t first_of_row[max_rows_of_part];  // found once: two divisions for each row and panel would show
};

}  // namespace heed::cpu::HEED_THIS_TARGET
