// SPDX-License-Identifier: Apache-2.0
#include "cpu/projection/driver.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cache/layout.hpp"
#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"

namespace heed::cpu {
namespace {

constexpr std::int64_t parts_per_thread = 4;
constexpr std::int64_t min_rows_of_part = 32;    // fewer read the weights too often
constexpr std::int64_t min_matrix_rows = 128;    // of matrix instructions, which wait for weights sooner
constexpr std::int64_t bytes_of_part = 1 << 19;  // of x, for the second-level cache
constexpr std::int64_t pieces_at_the_end = 4;

// Rows are cut so that x is packed once, evenly among the threads. Where rows are few, the outputs are cut as
// well. Where they are many, only the outputs of the last rows are, a part for each thread, so that threads
// of unequal speed end together.
struct ProjectionCut {
  std::int64_t row_parts, whole;  // of the row parts, the first `whole` have all panels
  std::int64_t panels, panels_per_part;

  struct Part {
    std::int64_t row_part, first_panel, end_panel;
  };
  std::int64_t across() const { return (panels + panels_per_part - 1) / panels_per_part; }
  std::int64_t count() const { return whole + (row_parts - whole) * across(); }
  Part operator[](std::int64_t n) const {
    if (n < whole) return {n, 0, panels};  // fault: panels-at-the-end
    const std::int64_t first = (n - whole) % across() * panels_per_part;
    return {whole + (n - whole) / across(), first, std::min(first + panels_per_part, panels)};
  }
};

ProjectionCut cut_projection(const Target& target, std::int64_t rows, std::int64_t depth,
                             std::int64_t panels) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  const std::int64_t min_rows = target.only_bf16 ? min_matrix_rows : min_rows_of_part;
  const std::int64_t row_bytes = depth * (target.only_bf16 ? 2 : 4);
  const std::int64_t max_rows = std::clamp(bytes_of_part / row_bytes, min_rows_of_part, max_rows_of_part);
  const std::int64_t wanted = threads * parts_per_thread;
  std::int64_t row_parts = std::max((rows + max_rows - 1) / max_rows, std::min(wanted, rows / min_rows));
  row_parts = std::max<std::int64_t>(row_parts, 1);
  if (row_parts > threads) row_parts = (row_parts + threads - 1) / threads * threads;
  std::int64_t panel_parts = std::clamp<std::int64_t>(wanted / row_parts, 1, (panels + 1) / 2);
  if (target.only_bf16 && row_parts >= threads) panel_parts = 1;
  std::int64_t whole = panel_parts > 1 || threads == 1 ? 0 : row_parts - threads;
  if (whole < threads) whole = 0;
  if (whole > 0) panel_parts = pieces_at_the_end;
  return {row_parts, whole, panels, ((panels + panel_parts - 1) / panel_parts + 1) / 2 * 2};
}

// W as it was given.
struct Given {
  Strides stride;

  std::int64_t first_of(std::int64_t output) const { return output * stride.length; }
  std::int64_t further(std::int64_t input) const { return input * stride.dim; }
};

// Inputs of a panel's outputs that are copied at a time, so that what is read stays in the first-level cache.
constexpr std::int64_t inputs_at_once = 32;

// The rows of W that become a panel of so many outputs; the inputs of a row lie side by side.
template <class T>
struct PanelRows {
  const T* first;
  std::int64_t step, count, outputs;
};

// Copies inputs [begin, end) of these rows, `together` at a time, in the order in which they are written;
// returns where it ended, since fewer may remain.
template <int together, class T>
std::int64_t copy_together(const PanelRows<T>& rows, std::int64_t begin, std::int64_t end, T* to) {
  for (; begin + together <= end; begin += together)
    for (std::int64_t n = 0; n < rows.count; ++n)
      std::memcpy(to + begin * rows.outputs + n * together, rows.first + n * rows.step + begin,
                  together * sizeof(T));
  return begin;
}

// Elements are copied as they are.
template <class T, class From>
void fill_panel(Panels& panels, const CpuProjection& w, const From& from, const T* elements,
                std::int64_t panel) {
  const std::int64_t outputs = panels.target->panel_rows, begin = panel * outputs,
                     count = std::min(outputs, w.out - begin), together = panels.target->depth_together;
  T* const to = reinterpret_cast<T*>(panels.memory.get()) + begin * panels.depth;
  if (count < outputs || w.in < panels.depth) std::fill_n(to, outputs * panels.depth, T{});
  for (std::int64_t first = 0; first < w.in; first += inputs_at_once) {
    const std::int64_t end = std::min(first + inputs_at_once, w.in);
    std::int64_t k = first;
    if constexpr (std::is_same_v<From, Given>)
      if (from.stride.dim == 1) {
        const PanelRows<T> rows{elements + from.first_of(begin), from.stride.length, count, outputs};
        if (together == 1) k = copy_together<1>(rows, k, end, to);
        if (together == 2) k = copy_together<2>(rows, k, end, to);
        if (together == 4) k = copy_together<4>(rows, k, end, to);
      }
    for (; k < end; ++k)
      for (std::int64_t n = 0; n < count; ++n)
        to[panels.further(k) + n * together] = elements[from.first_of(begin + n) + from.further(k)];
  }
}

template <class From>
void fill(Panels& panels, const CpuProjection& w, const From& from, const void* elements) {
  const std::int64_t outputs = panels.target->panel_rows;
  threads::parallel_for(static_cast<std::size_t>((w.out + outputs - 1) / outputs), [&](std::size_t n) {
    const auto panel = static_cast<std::int64_t>(n);
    if (w.dtype == DType::f32)
      fill_panel(panels, w, from, static_cast<const float*>(elements), panel);
    else
      fill_panel(panels, w, from, static_cast<const std::uint16_t*>(elements), panel);
  });
}

const Target& target_of(DType weights) {
  if (weights == DType::bf16)
    if (const Target* matrix = best_bf16_target()) return *matrix;
  return best_target();
}

const CpuProjection& projection_of(const Projected& p) { return static_cast<const CpuProjection&>(p.by); }
const Target& target_of(const Projected& p) { return projection_of(p).target_for(p.x.dtype); }

std::int64_t depth_for(const Target& target, std::int64_t in) {
  return (in + target.depth_step - 1) / target.depth_step * target.depth_step;
}

// Matrix instructions only copy x, and wait for weights: where threads have several parts of x, three
// matrices that all pass by each of them take up to 1.13 times as long as one after the other (AMX, 2
// threads, 512 rows, model 4096, November 2026).
bool is_worth_sharing(const Projected& p) {
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  return !target_of(p).only_bf16 || p.x.shape.batch * p.x.shape.length <= threads * min_matrix_rows;
}

bool is_together(const Projected& a, const Projected& b) {
  // fault: one-x-for-all
  return a.x.data == b.x.data && a.x.shape == b.x.shape && a.x.stride == b.x.stride &&
         a.x.dtype == b.x.dtype && &target_of(a) == &target_of(b) && is_worth_sharing(a);
}

LinearMap map_of(const Projected& p) {
  LinearMap map = projection_of(p).map_for(p.x.dtype);
  map.y = lower(p.y);
  map.y_dim = p.y.shape.dim;
  return map;
}

// Projections of one x on one target.
void project_together(std::span<const Projected> together) {
  const View& x = together.front().x;
  const Target& target = target_of(together.front());
  Linear linear{.x = lower(x),
                .x_heads = x.shape.heads,
                .x_dim = x.shape.dim,
                .length = x.shape.length,
                .depth = depth_for(target, x.shape.heads * x.shape.dim)};
  std::int64_t panels = 0;
  for (const Projected& p : together) {
    linear.maps[linear.map_count++] = map_of(p);
    panels += (projection_of(p).out + target.panel_rows - 1) / target.panel_rows;
  }
  const std::int64_t rows = x.shape.batch * x.shape.length;
  if (rows == 0 || panels == 0) return;
  const ProjectionCut parts = cut_projection(target, rows, linear.depth, panels);
  const std::int64_t row_parts = parts.row_parts;
  // Rows are dealt out in tiles, so that no part but the last has a short one, and parts differ by a tile.
  const std::int64_t tile = target.tile_columns, tiles = (rows + tile - 1) / tile;
  linear.rows_of_part = std::min(rows, (tiles + row_parts - 1) / row_parts * tile);
  const auto count = static_cast<std::size_t>(parts.count());
  Layout layout;
  const auto scratch = layout.give_each_slot<float>(target.project_floats(linear));
  TaskMemory memory(slots_for(count), layout);
  threads::parallel_for(count, [&](std::size_t n) {
    const auto [part, first_panel, end_panel] = parts[static_cast<std::int64_t>(n)];
    const std::int64_t row = part * tiles / row_parts * tile,
                       end = std::min(rows, (part + 1) * tiles / row_parts * tile);
    const TaskMemory::Slot slot(memory);
    target.project(linear,
                   {.first_row = row, .rows = end - row, .first_panel = first_panel, .end_panel = end_panel},
                   slot[scratch]);
  });
}

}  // namespace

Panels::Panels(const Target& kernels, std::int64_t out, std::int64_t in, DType dtype)
    : target(&kernels), depth(depth_for(kernels, in)) {
  const std::int64_t outputs = target->panel_rows;
  const auto elements = static_cast<std::size_t>((out + outputs - 1) / outputs * outputs * depth);
  memory = threads::take_memory(floats_in_lines(elements * bytes_of(dtype)));
}

CpuProjection::CpuProjection(const View& w, std::span<const float> offsets, Ownership ownership)
    : out(w.shape.length),
      in(w.shape.dim),
      dtype(w.dtype),
      bias(offsets.begin(), offsets.end()),
      target_(&target_of(dtype)) {
  if (ownership == Ownership::lent) lent_ = w;
  if (lent_ && !target_->only_bf16) return;
  fill(packed_.emplace(*target_, out, in, dtype), *this, Given{w.stride}, w.data);
}

void CpuProjection::operator()(const View& x, const MutableView& y) const { project_all({{{*this, x, y}}}); }

const Target& CpuProjection::target_for(DType x) const {
  return target_->only_bf16 && x != DType::bf16 ? best_target() : *target_;
}

LinearMap CpuProjection::map_for(DType x) const {
  LinearMap map{
      .panel_type = problem::type_of(dtype), .out = out, .bias = bias.empty() ? nullptr : bias.data()};
  const Target& target = target_for(x);
  if (&target == target_ && packed_) {
    map.panels = packed_->memory.get();
  } else if (lent_) {
    map.rows = lower(*lent_);
  } else {
    std::call_once(asked_for_vectors_, [&] {
      for_vectors_.emplace(target, out, in, dtype);
      fill(*for_vectors_, *this, *packed_, packed_->memory.get());
    });
    map.panels = for_vectors_->memory.get();
  }
  map.is_packed = map.panels != nullptr;
  return map;
}

void project_all(std::span<const Projected> all) {
  while (!all.empty()) {
    std::size_t count = 1;
    while (count < std::min<std::size_t>(all.size(), Linear::max_maps) && is_together(all[0], all[count]))
      ++count;
    project_together(all.first(count));
    all = all.subspan(count);
  }
}

// The gradient of the matrix and of the bias.
namespace {

// Of a part: a block of tokens of y stays in the second-level cache, while panels of x and the sums pass by.
// The larger a part, the less often x and y are packed.
constexpr std::int64_t max_inputs = 768, max_outputs = 192;
constexpr std::int64_t weight_parts_per_thread = 2;

std::int64_t parts_of(std::int64_t extent, std::int64_t part) { return (extent + part - 1) / part; }

// How many inputs and outputs a part has, in whole panels and tiles: enough parts for all threads, and none
// so narrow that packing its inputs takes longer than multiplying them.
struct PartExtents {
  PartExtents(const Target& target, std::int64_t all_inputs, std::int64_t all_outputs) {
    const std::int64_t wanted = static_cast<std::int64_t>(threads::concurrency()) * weight_parts_per_thread;
    std::int64_t across = parts_of(all_inputs, max_inputs);
    while (all_outputs / parts_of(wanted, across) < all_inputs / across / 4) across *= 2;
    inputs = std::min(all_inputs, in_whole(target.panel_rows, parts_of(all_inputs, across)));
    outputs =
        std::min(max_outputs, in_whole(target.tile_columns, parts_of(all_outputs, parts_of(wanted, across))));
  }

  std::int64_t inputs, outputs;

 private:
  static std::int64_t in_whole(std::int64_t unit, std::int64_t n) { return parts_of(n, unit) * unit; }
};

// How many numbers of a token's row lie together: those of a head, or of all where heads follow each other.
std::int64_t run_of(const View& x) {
  const bool follow = x.stride.heads == x.shape.dim * x.stride.dim;
  return follow ? x.shape.heads * x.shape.dim : x.shape.dim;
}

}  // namespace

void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias) {
  const Target& target = best_target();
  const std::int64_t outputs = w.shape.length, inputs = w.shape.dim;
  const PartExtents part(target, inputs, outputs);
  const WeightGradientCall g{.x = lower(x),
                             .y = lower(y),
                             .x_dim = run_of(x),
                             .y_dim = run_of(y),
                             .length = x.shape.length,
                             .tokens = x.shape.batch * x.shape.length,
                             .inputs = inputs,
                             .outputs = outputs,
                             .w = static_cast<float*>(w.data),
                             .bias = static_cast<float*>(bias.data),
                             .max_inputs = part.inputs,
                             .max_outputs = part.outputs};
  if (g.tokens == 0) return;
  const std::int64_t across = parts_of(inputs, g.max_inputs),
                     parts = across * parts_of(outputs, g.max_outputs);
  Layout layout;
  const auto scratch = layout.give_each_slot<float>(target.weight_gradient_floats(g));
  TaskMemory memory(slots_for(static_cast<std::size_t>(parts)), layout);
  const double multiplications =
      static_cast<double>(g.tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
  share_out(parts, multiplications, [&](std::int64_t n) {
    const std::int64_t input = n % across * g.max_inputs, output = n / across * g.max_outputs;
    const TaskMemory::Slot slot(memory);
    target.weight_gradient(g,
                           {.first_input = input,
                            .inputs = std::min(g.max_inputs, inputs - input),
                            .first_output = output,
                            .outputs = std::min(g.max_outputs, outputs - output)},
                           slot[scratch]);
  });
}

}  // namespace heed::cpu
