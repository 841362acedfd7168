// SPDX-License-Identifier: Apache-2.0
// attention(): checks and lowers the call, chooses a kernel, and repairs the rows that do not fit its type.
#include "heed/attention.hpp"

#include "api/gathered_cache.hpp"
#include "api/plan.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "cpu/drivers.hpp"
#include "threads/pool.hpp"

namespace heed::api {
void run(const Kernel& kernel, const Problem& problem) {
  if (problem.batch == 0) return;  // S14
  if (problem.rotates_keys && problem.reading) {
    const GatheredCache rotated(problem, backend_of("q", problem.device()));
    return run(kernel, rotated.problem);
  }
  if (kernel.attend(problem)) cpu::repair(problem);
}

}  // namespace heed::api

namespace HEED_NAMESPACE {

void attention(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  const Problem problem = make_problem(inputs, outputs, options);
  const threads::ForOneCall settings(options.threads, options.executor);
  api::run(api::choose(Work::attention, problem), problem);
}

}  // namespace HEED_NAMESPACE
