// SPDX-License-Identifier: Apache-2.0
#include "problem/checks.hpp"

namespace heed::problem {

void check_views(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  check_view("q", inputs.q);
  if (!inputs.cache) check_view("k", inputs.k);
  if (!inputs.cache) check_view("v", inputs.v);
  check_view("out", outputs.out);
  if (outputs.weights) check_view("weights", *outputs.weights);
  if (outputs.log_sum_exp) check_view("log_sum_exp", *outputs.log_sum_exp);
  if (outputs.scores.into) check_view("scores.into", *outputs.scores.into);
  if (options.bias) check_view("options.bias", *options.bias);
  if (options.sink) check_view("options.sink", *options.sink);
}

}  // namespace heed::problem
