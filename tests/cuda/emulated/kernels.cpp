// SPDX-License-Identifier: Apache-2.0
// The exact kernels on a CPU that emulates a GPU's threads.
#include "../kernels.hpp"

#include <algorithm>
#include <memory>

#include "cuda/exact/few.cuh"
#include "cuda/exact/general.cuh"
#include "cuda/exact/inspect.cuh"
#include "cuda/exact/long.cuh"
#include "cuda/lower.hpp"
#include "emulated/fibers.hpp"

namespace heed::cuda::test {
namespace {

template <int slabs, bool in_place>
void attend(const Call& c, const ExactLaunch& launch) {
  using Kernel = Exact<slabs, in_place>;
  const auto shared = std::make_unique<typename Kernel::Shared>();
  emulated::launch(launch.blocks(), exact_threads, [&] { Kernel(c, launch.plan, *shared).run(); });
}

template <int rows>
void attend_few(const Call& c, const ExactLaunch& launch) {
  const auto shared = std::make_unique<ExactFewShared<rows>>();
  const ExactPlan plan = launch.first();
  emulated::launch(launch.first_blocks(c), few_threads, [&] { ExactFew<rows>(c, plan, *shared).run(); });
}

void attend_long(const Call& c, const ExactLaunch& launch) {
  const auto shared = std::make_unique<ExactLongShared>();
  emulated::launch(launch.first_blocks(c), long_threads, [&] { attend_long(c, launch.plan, *shared); });
}

void attend(const Call& c, const ExactLaunch& launch) {
  if (launch.plan.first_tiles > 0)
    launch.few == 4   ? attend_few<4>(c, launch)
    : launch.few == 8 ? attend_few<8>(c, launch)
                      : attend_long(c, launch);
  if (launch.slabs == 1) return launch.in_place ? attend<1, true>(c, launch) : attend<1, false>(c, launch);
  launch.in_place ? attend<2, true>(c, launch) : attend<2, false>(c, launch);
}

}  // namespace

std::vector<std::string> kernel_names() { return {"cuda.exact"}; }

bool run(const std::string&, const Problem& problem, Cut cut) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  ExactLaunch launch = plan_exact(c, cut == Cut::apart ? 1 << 30 : cut == Cut::together ? 0 : 8);
  if (launch.blocks() == 0) return true;
  std::vector<float> partials(static_cast<std::size_t>(launch.partial_floats));
  std::vector<unsigned> arrivals(
      static_cast<std::size_t>(std::max<std::int64_t>(launch.tiles, exact_counters)));
  std::vector<SavedEnd> ends(static_cast<std::size_t>(launch.saved_ends));
  launch.plan.partials = partials.data(), launch.plan.arrivals = arrivals.data();
  launch.plan.ends = ends.empty() ? nullptr : ends.data();
  attend(c, launch);
  if (!c.weights.data && !c.scores.data) return true;
  const std::int64_t parts = (c.keys + Inspection::threads - 1) / Inspection::threads;
  emulated::launch(c.batch * c.heads * c.queries * parts, Inspection::threads,
                   [&] { Inspection(c, launch.plan.ends).run(); });
  return true;
}

}  // namespace heed::cuda::test
