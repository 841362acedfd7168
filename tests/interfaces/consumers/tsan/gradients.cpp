// SPDX-License-Identifier: Apache-2.0
// Gradients on four threads, under ThreadSanitizer, over a heed that was not compiled for it.
#include <heed/heed.hpp>
#include <vector>

int main() {
  heed::set_num_threads(4);
  const heed::Shape shape{.heads = 8, .length = 200, .dim = 64}, rows{.heads = 8, .length = 200};
  using Floats = std::vector<float>;
  for (int call = 0; call < 20; ++call) {
    Floats q(8 * 200 * 64, 0.5f), k = q, v = q, out = q, by_out = q, by_q = q, by_k = q, by_v = q;
    Floats log_sum_exp(8 * 200);
    const heed::Inputs inputs{.q = {q, shape}, .k = {k, shape}, .v = {v, shape}};
    heed::attention(inputs, {.out = {out, shape}, .log_sum_exp = heed::MutableView{log_sum_exp, rows}});
    heed::attention_backward(inputs, {.out = {out, shape}, .log_sum_exp = {log_sum_exp, rows}},
                             {.out = {by_out, shape},
                              .q = heed::MutableView{by_q, shape},
                              .k = heed::MutableView{by_k, shape},
                              .v = heed::MutableView{by_v, shape}});
  }
}
