// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge.hpp"

#include <utility>

#include "cpu/element.hpp"
#include "softmax/state.hpp"

namespace heed::cpu {

void merge(const Outputs& into, const Results& other) {
  auto* const our_lse = static_cast<float*>(into.log_sum_exp->data);
  const auto* const their_lse = static_cast<const float*>(other.log_sum_exp->data);
  Shape rows = into.out.shape;
  const std::int64_t dim = std::exchange(rows.dim, 1);
  with_elements(into.out, [&]<class T>(T* ours) {
    with_elements(other.out, [&](const auto* theirs) {
      for_each_index(rows, [&](const Shape& at) {
        float& lse = our_lse[offset(into.log_sum_exp->stride, at)];
        const softmax::MergedRow merged(lse, their_lse[offset(other.log_sum_exp->stride, at)]);
        if (merged.is_ours()) return;
        T* const x = ours + offset(into.out.stride, at);
        const auto* const z = theirs + offset(other.out.stride, at);
        for (std::int64_t d = 0; d < dim; ++d) {
          T& sum = x[d * into.out.stride.dim];
          const float more = to_float(z[d * other.out.stride.dim]);
          sum = from_float<T>(static_cast<float>(merged.out(to_float(sum), more)));
        }
        lse = static_cast<float>(merged.log_sum_exp());
      });
    });
  });
}

}  // namespace heed::cpu
