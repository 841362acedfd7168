// SPDX-License-Identifier: Apache-2.0
// The rows of x and y of projections where they lie, which panels of weights a task has of each, and how a
// panel of outputs gets to y: the bias is added, and the sum is rounded once to y's type.
#pragma once
#include <cstdint>

#include "cpu/algorithm/pack.hpp"
#include "cpu/call.hpp"
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
        begin(t.maps[n], part);
        multiply(t.maps[n], most(first, 0), least(end, panels));
      }
      first -= panels;
      end -= panels;
    }
  }

  Row at(const Tensor& tensor, std::int64_t row, std::int64_t head) const {
    return row_of(tensor, row / t.length, head, row % t.length);
  }

  // Writes values(rows, outputs) of one panel, for up to so many of the task's rows from the first one on.
  // Outputs of one head lie together. Compiled once, not at every call.
  [[gnu::noinline]] void write(std::int64_t panel, std::int64_t first, std::int64_t most_rows,
                               float* values) const {
    const std::int64_t begin = panel * outputs, end = least(begin + outputs, map->out);
    for (std::int64_t n = begin; n < end;) {
      const std::int64_t head = n / map->y_dim, next = least(end, (head + 1) * map->y_dim);
      for (std::int64_t r = first; r < least(first + most_rows, count); ++r) {
        float* from = values + (r - first) * outputs + (n - begin);
        if (map->bias)
          for (std::int64_t i = 0; i < next - n; ++i) from[i] += map->bias[n + i];
        const Tensor& y = map->y;
        const Row row{y.data, first_of_row[r] + head * y.stride.heads, y.stride.dim, y.type};
        write_stretch(row, n - head * map->y_dim, next - n, from);
      }
      n = next;
    }
  }

 private:
  void begin(const LinearMap& its, const LinearPart& part) {
    map = &its;
    count = part.rows;
    for (std::int64_t r = 0; r < count; ++r) first_of_row[r] = at(its.y, part.first_row + r, 0).first;
  }

  static void write_stretch(const Row& row, std::int64_t d, std::int64_t n, const float* values) {
    void* const y = const_cast<void*>(row.data);
    const std::int64_t first = row.first + d;
    if (row.step != 1)
      for (std::int64_t i = 0; i < n; ++i) cpu::HEED_THIS_TARGET::write(row, d + i, values[i]);
    else if (row.type == Type::f32)
      store(values, n, static_cast<float*>(y) + first, [](float x) { return x; });
    else if (row.type == Type::bf16)
      store(values, n, static_cast<std::uint16_t*>(y) + first,
            [](float x) { return from_float<bf16>(x).bits; });
    else
      store(values, n, static_cast<std::uint16_t*>(y) + first, [](float x) { return from_float<f16>(x).bits; });
  }

  // Whole panels apart, so that the compiler knows how many vectors they are.
  template <class T, class Round>
  static void store(const float* values, std::int64_t n, T* to, const Round& round) {
    if (n == outputs)
      for (int i = 0; i < outputs; ++i) to[i] = round(values[i]);
    else
      for (std::int64_t i = 0; i < n; ++i) to[i] = round(values[i]);
  }

  const Linear& t;
  const LinearMap* map = nullptr;
  std::int64_t count = 0;
  std::int64_t first_of_row[most_rows_of_part];  // found once: two divisions for each row and panel would show
};

}  // namespace heed::cpu::HEED_THIS_TARGET
