// SPDX-License-Identifier: Apache-2.0
// attention_backward(): checks and lowers the call, chooses a kernel, and repairs what does not fit its type.
#include "api/plan.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "cpu/drivers.hpp"
#include "heed/version.hpp"
#include "threads/pool.hpp"

namespace heed::api {

void attention_backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                        const Options& options, const std::optional<Place>& place) {
  backend_of("q", inputs.q.device);
  GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  problem.forward.place = place;
  const threads::ForOneCall settings(options.threads, options.executor);
  RepairMarks marks = choose(problem).backward(problem);
  if (!marks.is_empty()) cpu::repair(problem, marks);
}

}  // namespace heed::api

namespace HEED_NAMESPACE {

void attention_backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                        const Options& options) {
  api::attention_backward(inputs, saved, gradients, options, {});
}

}  // namespace HEED_NAMESPACE
