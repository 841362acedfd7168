// SPDX-License-Identifier: Apache-2.0
// What the fragments of the pages take as given: views of a batch of 2 with 8 query heads, 2 KV heads, 6
// queries and 9 keys.
#pragma once
#include <array>
#include <cstdint>
#include <cstdio>
#include <heed/distributed.hpp>
#include <heed/distributed_layer.hpp>
#include <heed/gradient.hpp>
#include <heed/heed.hpp>
#include <span>
#include <utility>
#include <vector>

namespace {

struct Tensor {
  heed::Shape shape;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(shape.elements()), 0.5f);
  heed::MutableView view() { return {values, shape}; }
};

Tensor q_tensor{{2, 8, 6, 16}}, k_tensor{{2, 2, 6, 16}}, v_tensor{{2, 2, 6, 16}}, out_tensor{{2, 8, 6, 16}};
Tensor encoded_k_tensor{{2, 2, 9, 16}}, encoded_v_tensor{{2, 2, 9, 16}}, bias_tensor{{1, 8, 6, 6}};
Tensor weights_tensor{{2, 8, 6, 6}}, x_tensor{{2, 1, 6, 128}}, y_tensor{{2, 1, 6, 128}},
    context_tensor{{2, 1, 9, 128}};

[[maybe_unused]] const heed::View q = q_tensor.view(), k = k_tensor.view(), v = v_tensor.view(),
                                  x = x_tensor.view(), encoded_k = encoded_k_tensor.view(),
                                  encoded_v = encoded_v_tensor.view(), context = context_tensor.view(),
                                  bias = bias_tensor.view();
[[maybe_unused]] const heed::MutableView out = out_tensor.view(), weights = weights_tensor.view(),
                                         y = y_tensor.view();
// Six tokens of three times 64 numbers, and of 64.
[[maybe_unused]] float rows[6 * 3 * 64]{}, joined[6 * 64]{};

}  // namespace
