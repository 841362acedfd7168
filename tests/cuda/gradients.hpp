// SPDX-License-Identifier: Apache-2.0
// What claims about gradients share: the kernels' names, and the bound of the reference.
#pragma once
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "claims.hpp"
#include "heed/check.hpp"
#include "kernels.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {

using cases::BackwardCall;
using cases::BackwardResults;
using cases::Of;

const std::string exact = "cuda.exact", hopper = "cuda.backward", cpu = "cpu.backward.scalar";

inline std::vector<std::uint64_t> some_seeds(std::uint64_t count) {
  return cases::seeds(1, is_emulated() ? count / 6 : count);
}

inline std::string named(const std::string& kernel, std::uint64_t seed, const Call& call) {
  return kernel + ", seed " + std::to_string(seed) + " (" + cases::describe(call) + ")";
}

// Whether the kernel took the call.
inline bool expect_right(const std::string& kernel, const BackwardCall& backward, const std::string& what,
                         std::optional<DType> dtype = {}) {
  auto got = gradients_of(kernel, backward, dtype);
  if (!got) return false;
  const Check result =
      check(backward.call.inputs(), backward.saved(), got->views(backward), backward.call.options());
  expect(result.beyond_bound == 0, what, ": ", result.beyond_bound, " of ", result.compared,
         " beyond the bound, first ", result.first_miss);
  return true;
}

// The call in the type that the kernel is for.
inline Call middling_call(const std::string& kernel, std::int64_t batch, std::uint64_t seed) {
  const DType dtype = kernel == exact ? DType::f32 : DType::bf16;
  Call call{.q = Tensor::random({batch, 4, 150, 64}, seed, 3, dtype),
            .k = Tensor::random({batch, 2, 150, 64}, seed + 1, 2, dtype),
            .v = Tensor::random({batch, 2, 150, 64}, seed + 2, 2, dtype)};
  call.causal = Causal{};
  return call;
}

// Every element of every gradient: `agree` has both tensors and the place.
template <class Agree>
void expect_each(const BackwardResults& found, const BackwardResults& wanted, const std::string& what,
                 const Agree& agree) {
  for (const Of of : cases::every_gradient) {
    if (!found[of]) continue;
    std::int64_t differ = 0, total = 0;
    std::ostringstream first;
    cases::for_each(found[of]->shape(), [&](auto b, auto h, auto i, auto d) {
      ++total;
      if (agree(*found[of], *wanted[of], b, h, i, d) || differ++ > 0) return;
      first << "(" << b << ", " << h << ", " << i << ", " << d << ") is " << found[of]->at(b, h, i, d)
            << ", not " << wanted[of]->at(b, h, i, d);
    });
    expect(differ == 0, what, ", ", cases::name_of(of), ": ", differ, " of ", total, " differ, first ",
           first.str());
  }
}

}  // namespace heed::cuda::test
