// SPDX-License-Identifier: Apache-2.0
// attention(): checks and lowers the call, chooses a kernel, and completes the rows that it did not finish.
#include "heed/attention.hpp"

#include <utility>
#include <vector>

#include "api/complete_rows.hpp"
#include "api/gathered_cache.hpp"
#include "api/plan.hpp"
#include "api/poisoned_values.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "reference/row.hpp"
#include "threads/pool.hpp"

namespace heed::api {
namespace {

// Rows that a kernel did not finish; those that it did keep their bits.
void complete(const Problem& problem) {
  std::vector<reference::UnfinishedRow> unfinished = reference::unfinished_rows(problem);
  if (problem.inputs.q.dtype != DType::f64) settle_poisoned(problem, unfinished);
  if (unfinished.empty()) return;
  const GatheredCache plain(problem, backend_of("q", Device::cpu));
  complete_rows(plain.problem, std::move(unfinished));
}

}  // namespace

void run(const Kernel& kernel, const Problem& problem) {
  if (problem.batch == 0) return;  // S14
  if (problem.rotates_keys && problem.reading) {
    const GatheredCache rotated(problem, backend_of("q", problem.device()));
    return run(kernel, rotated.problem);
  }
  if (kernel.attend(problem)) complete(problem);
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
