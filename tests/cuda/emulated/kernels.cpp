// SPDX-License-Identifier: Apache-2.0
// The exact kernels on a CPU that emulates a GPU's threads.
#include "../kernels.hpp"

#include <algorithm>
#include <memory>

#include "cuda/backward/complete.cuh"
#include "cuda/backward/mask.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/exact/backward.cuh"
#include "cuda/exact/bias_gradient.cuh"
#include "cuda/exact/few.cuh"
#include "cuda/exact/general.cuh"
#include "cuda/exact/inspect.cuh"
#include "cuda/exact/long.cuh"
#include "cuda/general/backward.cuh"
#include "cuda/general/bias_gradient.cuh"
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
  emulated::launch(launch.first_blocks(c), few_threads, [&] {
    launch.few_of_pages ? ExactFew<rows, true>(c, plan, *shared).run()
                        : ExactFew<rows, false>(c, plan, *shared).run();
  });
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
bool is_emulated() { return true; }

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

namespace {

// What backend.cpp cuts out of a workspace.
struct BackwardMemory {
  std::vector<float> numbers;
  std::vector<std::uint32_t> q, k, v, bias, sink;  // a bit for each mark
  unsigned any_unfinished = 0;

  explicit BackwardMemory(const GradientCall& g)
      : numbers(static_cast<std::size_t>(3 * g.all_rows())),
        q(words(g.all_rows() * g.slabs(g.forward.dim))),
        k(words(g.all_keys() * g.slabs(g.forward.dim))),
        v(words(g.all_keys() * g.slabs(g.forward.value_dim))),
        bias(words(g.bias.elements())),
        sink(words(g.sink.elements())) {}

  static std::size_t words(std::int64_t marks) { return static_cast<std::size_t>((marks + 31) / 32); }

  GradientRows rows(std::int64_t all) {
    return {numbers.data(), numbers.data() + all, numbers.data() + 2 * all, q.data(), k.data(), v.data(),
            bias.data(),    sink.data(),          &any_unfinished};
  }
};

void differentiate_bias(const GradientCall& g) {
  if (g.bias.elements() == 0) return;
  const auto shared = std::make_unique<ExactBiasGradient::Shared>();
  emulated::launch(BiasTiles(g).blocks(), pair_threads, [&] {
    PairOptions options;
    ExactBiasGradient(g, *shared, options).run();
  });
}

void differentiate(const GradientCall& g) {
  constexpr std::int64_t few_tiles = 8;  // in memory at once, so that there are parts of heads and of rows
  const ExactParts parts(g, 8, few_tiles * ExactPart::tile_floats * 4);
  std::vector<float> memory(static_cast<std::size_t>(parts.bytes() / 4));
  const auto of_keys = std::make_unique<PairsShared>();
  const auto of_rows = std::make_unique<ExactRowGradients::Shared>();
  if (g.q.data || g.k.data || g.v.data)
    parts.run_each(
        memory.data(),
        [&](const ExactPart& part) {
          emulated::launch(ExactKeyGradients::blocks(part), pair_threads, [&] {
            PairOptions options;
            ExactKeyGradients(g, part, *of_keys, options).run();
          });
        },
        [&](const ExactPart& part, ExactParts::Beside) {
          emulated::launch(ExactRowGradients::blocks(g, part), pair_threads,
                           [&] { ExactRowGradients(g, part, *of_rows).run(); });
        });
  differentiate_bias(g);
}

// Memory as a block's shared memory is: whatever nobody wrote is NaN.
template <class Shared>
class PoisonedShared {
 public:
  PoisonedShared() : memory_(std::make_unique<unsigned char[]>(sizeof(Shared) + alignof(Shared))) {
    auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    shared_memory = memory_.get() + (alignof(Shared) - at % alignof(Shared)) % alignof(Shared);
    std::memset(shared_memory, 0xff, sizeof(Shared));
  }
  Shared& get() const { return *reinterpret_cast<Shared*>(shared_memory); }

 private:
  std::unique_ptr<unsigned char[]> memory_;
};

// How the general kernels cut a call: into the tiles of one device, or of one with less memory.
enum class TileSize : std::uint8_t { larger, smaller };

template <class Kernel>
void launch_general(std::int64_t blocks, int threads, const GradientCall& g,
                    const general::BackwardPlan& plan) {
  const PoisonedShared<typename Kernel::Shared> shared;
  emulated::launch(blocks, threads, [&] { Kernel(g, plan, shared.get()).run(); });
}

template <class Shape>
void differentiate_in_general(const GradientCall& g, const MaskTiles& mask) {
  constexpr int at_once = 3;  // blocks, as far as the order of claims goes
  auto plan = general::BackwardPlan::of<Shape>(g, at_once);
  unsigned claims = 0;
  std::vector<float> memory(static_cast<std::size_t>(plan.template bytes<Shape>() / 4 + 1),
                            std::numeric_limits<float>::quiet_NaN());
  plan.take(&claims, reinterpret_cast<std::byte*>(memory.data()));
  std::memset(plan.adds, 0, static_cast<std::size_t>(plan.add_bytes()));
  plan.mask = mask;
  if (!g.q.data) plan.adds = nullptr;
  launch_general<general::Backward<Shape>>(plan.blocks(), Shape::threads, g, plan);
  typename general::BackwardQueries<Shape>::Unfinished unfinished;
  if (plan.adds)
    emulated::launch(plan.tiles(), Shape::threads,
                     [&] { general::BackwardQueries<Shape>::run(g, plan, unfinished); });
  using OfBias = general::BiasShape<Shape::type, Shape::dim>;
  if (general::has_bias_kernel(g))
    launch_general<general::BiasGradient<OfBias>>(general::bias_tiles<OfBias>(g), OfBias::threads, g, plan);
}

template <Type type, int dim>
void differentiate_in_general(const GradientCall& g, TileSize size) {
  MaskTiles mask = mask_tiles(g.forward);
  std::vector<KeyBits> bits(static_cast<std::size_t>(mask.tiles() * MaskTiles::keys));
  if (size == TileSize::larger) mask.words = bits.data();  // else they are asked for tile by tile
  emulated::launch(mask.words ? mask.tiles() : 0, MaskTiles::keys, [&] { pack_mask_tile(g.forward, mask); });
  const auto run = [&]<general::PairStage stage> {
    using Tiles = general::GradientTiles<dim, stage>;
    if (size == TileSize::larger)
      differentiate_in_general<general::BackwardShape<type, dim, stage, typename Tiles::Larger>>(g, mask);
    else
      differentiate_in_general<general::BackwardShape<type, dim, stage, typename Tiles::Smaller>>(g, mask);
  };
  using enum general::PairStage;
  general::stage_of(g.forward) == ranges ? run.template operator()<ranges>()
                                         : run.template operator()<every_option>();
}

bool takes_general(const GradientCall& g) {
  return general::has_one_type(g) && std::max(g.forward.dim, g.forward.value_dim) <= 256;
}

void differentiate_in_general(const GradientCall& g, TileSize size) {
  general::for_width(g, [&]<Type type, int dim> { differentiate_in_general<type, dim>(g, size); });
  if (!general::has_bias_kernel(g)) differentiate_bias(g);
}

}  // namespace

std::vector<std::string> backward_kernel_names() {
  return {"cuda.general", "cuda.general.small", "cuda.exact"};
}

bool run_backward(const std::string& kernel, const GradientProblem& problem) {
  const LoweredGradients lowered(problem);
  GradientCall g = lowered.call;
  BackwardMemory memory(g);
  g.rows = memory.rows(g.all_rows());
  const std::int64_t row_blocks = (g.all_rows() + gradient_threads - 1) / gradient_threads;
  const bool is_general = kernel != "cuda.exact";
  emulated::launch(row_blocks, gradient_threads, [&] { prepare_exact_row(g, !is_general); });
  if (is_general && !takes_general(g)) return false;
  if (is_general)
    differentiate_in_general(g, kernel == "cuda.general" ? TileSize::larger : TileSize::smaller);
  else
    differentiate(g);
  SinkGradient::Shared terms;
  emulated::launch(g.sink.elements(), gradient_threads, [&] { SinkGradient::run(g, terms); });
  Completion::Shared shared;
  constexpr std::int64_t blocks = 3;
  const Marked marked = is_general ? Marked::written : Marked::unwritten;
  const auto complete = [&](auto step) {
    emulated::launch(blocks, gradient_threads, [&] { (Completion(g, marked, shared).*step)(blocks); });
  };
  complete(&Completion::find_rows), complete(&Completion::decide_classes), complete(&Completion::add_sums);
  return true;
}

}  // namespace heed::cuda::test
