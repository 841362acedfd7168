// SPDX-License-Identifier: Apache-2.0
#include "cpu/copy.hpp"

#include "cpu/element.hpp"

namespace heed::cpu {

void copy(const View& from, const MutableView& into) {
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        to[offset(into.stride, at)] = from_float<T>(to_float(source[offset(from.stride, at)]));
      });
    });
  });
}

void add(const View& from, const MutableView& into) {
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        T& sum = to[offset(into.stride, at)];
        sum = from_float<T>(to_float(sum) + to_float(source[offset(from.stride, at)]));
      });
    });
  });
}

void average_heads(const View& from, const MutableView& into) {
  const std::int64_t heads = from.shape.heads;
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        const auto* first = source + offset(from.stride, at);
        float sum = to_float(*first);
        for (std::int64_t h = 1; h < heads; ++h) sum += to_float(first[h * from.stride.heads]);
        to[offset(into.stride, at)] = from_float<T>(sum / static_cast<float>(heads));
      });
    });
  });
}

void fill(const MutableView& x, float value) {
  with_elements(x, [&]<class T>(T* to) {
    for_each_index(x.shape, [&](const Shape& at) { to[offset(x.stride, at)] = from_float<T>(value); });
  });
}

}  // namespace heed::cpu
