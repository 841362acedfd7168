// SPDX-License-Identifier: Apache-2.0
// Attention and its gradients in f64, on all threads. A task of attention is a panel of queries. The
// gradients of a KV head are a grid of cells, which add to its sums one after another; what they come to is
// written at the end.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/f64/elements.hpp"
#include "cpu/schedule/tasks.hpp"
#include "threads/waves.hpp"

namespace heed::cpu {
namespace {

std::vector<F64Panel> panels_of(const Call& c) {
  std::vector<F64Panel> panels;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.sequences[b].queries; i += f64_panel_rows)
        panels.push_back({b, h, i, std::min(f64_panel_rows, c.sequences[b].queries - i)});
  return panels;
}

struct Cells {
  std::vector<threads::Grid> grids{};  // of a KV head: (panels, keys)
  std::vector<F64Cell> all{};          // grid after grid, row after row
  std::vector<float> times{};
};

// Of the KV heads that takes(batch entry, KV head) says.
template <class Takes>
Cells cells_of(const Call& c, const Takes& takes) {
  Cells cells;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t keys = c.sequences[b].key_count,
                       panels = c.group() * ((c.sequences[b].queries + f64_panel_rows - 1) / f64_panel_rows);
    if (keys == 0 || panels == 0) continue;
    for (std::int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
      if (!takes(b, kv_head)) continue;
      cells.grids.push_back({(panels - 1) / f64_cell_panels + 1, (keys - 1) / f64_cell_keys + 1});
      for (std::int64_t n = 0; n < panels; n += f64_cell_panels)
        for (std::int64_t j = 0; j < keys; j += f64_cell_keys) {
          cells.all.push_back(
              {b, kv_head, n, std::min(f64_cell_panels, panels - n), j, std::min(f64_cell_keys, keys - j)});
          cells.times.push_back(static_cast<float>(cells.all.back().panels * cells.all.back().keys));
        }
    }
  }
  return cells;
}

// Each after those that add to the same sums before it.
template <class Body>
void run_cells(const Cells& cells, double multiplications, const Body& body) {
  threads::Waves waves(cells.grids, cells.times);
  share_out(std::ssize(cells.all), multiplications, [&](std::int64_t) {
    const threads::Waves::Cell cell = waves.take();
    body(cells.all[cell.index]);
    waves.end(cell);
  });
}

// Whether a call computes gradients for the first time, and marks what is not finite (S13), or once more what
// is marked, and writes it as it is.
enum class Pass : std::uint8_t { first, repair };

// A gradient that is written: rounded once, to its type, and added to what is there where the call says so.
struct Written {
  const Tensor& to;
  bool accumulates;
  Pass pass;

  // Whether these sums are written, of which this is the mark.
  bool takes(std::span<const double> sums, unsigned char& mark) const {
    if (pass == Pass::repair) return mark != 0;
    if (std::ranges::any_of(sums, [](double x) { return !std::isfinite(x); })) mark = 1;
    return mark == 0;
  }
  void put(const Shape& at, double x) const {
    const TensorStrides& by = to.stride;
    const std::int64_t e =
        at.batch * by.batch + at.heads * by.heads + at.length * by.length + at.dim * by.dim;
    write_element(to, e, accumulates ? read_element(to, e) + x : pass == Pass::repair ? 0 + x : x);
  }
  // The sums of a row of q, k or v, times a factor.
  void put_row(std::span<const double> sums, double factor, Shape at, unsigned char& mark) const {
    if (!takes(sums, mark)) return;
    for (at.dim = 0; at.dim < std::ssize(sums); ++at.dim)
      put(at, factor * sums[static_cast<std::size_t>(at.dim)]);
  }
};

void write_rows(const GradientCall& g, const F64Sums& sums, Pass pass) {
  const Call& c = g.forward;
  const auto dim = static_cast<std::size_t>(c.dim), value_dim = static_cast<std::size_t>(c.value_dim);
  const Written q{g.q, g.accumulates, pass}, k{g.k, g.accumulates, pass}, v{g.v, g.accumulates, pass};
  share_out(c.batch * std::max(c.heads, c.kv_heads), products(c), [&](std::int64_t n) {
    const std::int64_t b = n % c.batch, h = n / c.batch;
    const Sequence& s = c.sequences[b];
    for (std::int64_t i = 0; sums.q && h < c.heads && i < s.queries; ++i) {
      const std::int64_t row = g.first_row[b] + h * s.queries + i;
      q.put_row({sums.q + row * c.dim, dim}, c.scale, {b, h, s.first_query + i, 0}, g.repair_q[row]);
    }
    for (std::int64_t j = 0; h < c.kv_heads && j < s.keys; ++j) {
      const std::int64_t key = g.key(b, h, j);
      const Shape at{b, h, s.first_key + j, 0};
      if (sums.k) k.put_row({sums.k + key * sums.k_width, dim}, c.scale, at, g.repair_k[key]);
      if (sums.v) v.put_row({sums.v + key * sums.v_width, value_dim}, 1, at, g.repair_v[key]);
    }
  });
}

bool any(const unsigned char* marks, std::int64_t count) {
  return marks && std::any_of(marks, marks + count, [](unsigned char mark) { return mark != 0; });
}

// Whether a row that reads the KV head is marked, or one of its keys.
bool is_marked(const GradientCall& g, std::int64_t b, std::int64_t kv_head) {
  const Call& c = g.forward;
  const Sequence& s = c.sequences[b];
  const std::int64_t key = g.key(b, kv_head, 0);
  if ((g.k.data && any(g.repair_k + key, s.keys)) || (g.v.data && any(g.repair_v + key, s.keys))) return true;
  for (std::int64_t n = 0; g.q.data && n < c.group(); ++n)
    if (any(g.repair_q + g.first_row[b] + c.head(kv_head, n) * s.queries, s.queries)) return true;
  return false;
}

std::int64_t whole(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

void run_rows(const F64Kernels& kernels, const GradientCall& g, Pass pass) {
  const Call& c = g.forward;
  std::int64_t rows = 0, keys = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    rows += c.heads * c.sequences[b].queries, keys += c.kv_heads * c.sequences[b].keys;
  F64Sums sums{.k_width = whole(c.dim, kernels.lanes), .v_width = whole(c.value_dim, kernels.lanes)};
  const Cells cells = cells_of(c, [&](std::int64_t b, std::int64_t kv_head) {
    return pass == Pass::first || is_marked(g, b, kv_head);
  });
  Layout layout;
  const auto share = [&layout](const Tensor& wanted, std::int64_t count) {
    return layout.share<double>(wanted.data ? static_cast<std::size_t>(count) : 0);
  };
  const auto q = share(g.q, rows * c.dim), k = share(g.k, keys * sums.k_width),
             v = share(g.v, keys * sums.v_width);
  const auto scratch = layout.give_each_slot<double>(kernels.gradient_doubles(g));
  TaskMemory memory(slots_for(std::max<std::size_t>(cells.all.size(), 1)), layout);
  const auto zeros = [&memory](const Layout::Shared<double>& region) {
    std::ranges::fill(memory[region], 0.0);
    return memory[region].data();
  };
  if (g.q.data) sums.q = zeros(q);
  if (g.k.data) sums.k = zeros(k);
  if (g.v.data) sums.v = zeros(v);
  if (!cells.all.empty())
    run_cells(cells, products(c), [&](const F64Cell& cell) {
      const TaskMemory::Slot slot(memory);
      kernels.gradient(g, cell, sums, slot[scratch]);
    });
  write_rows(g, sums, pass);
}

// The rows of a bias's gradient: those of a batch entry, or of a packed sequence.
struct BiasRows {
  std::int64_t first, count;
};
BiasRows bias_rows(const GradientCall& g, std::int64_t entry) {
  if (!g.is_packed || g.bias.length == 1) return {0, g.bias.length};
  return {g.forward.sequences[entry].first_query, g.forward.sequences[entry].queries};
}

// Every element is in one part.
std::vector<F64BiasPart> bias_parts(const GradientCall& g) {
  const std::int64_t entries = g.is_packed && g.bias.length != 1 ? g.forward.batch : g.bias.batch;
  std::vector<F64BiasPart> parts;
  for (std::int64_t b = 0; b < entries; ++b)
    for (std::int64_t h = 0; h < g.bias.heads; ++h)
      for (std::int64_t i = 0; i < bias_rows(g, b).count; i += f64_panel_rows) parts.push_back({b, h, i});
  return parts;
}

void run_bias(const F64Kernels& kernels, const GradientCall& g, Pass pass) {
  const SharedGradient& bias = g.bias;
  if (pass == Pass::repair && !any(bias.marks, bias.batch * bias.heads * bias.length * bias.dim)) return;
  const std::vector<F64BiasPart> parts = bias_parts(g);
  if (parts.empty()) return;
  const std::int64_t max_rows = std::min(f64_panel_rows, bias.length);
  Layout layout;
  const auto scratch = layout.give_each_slot<double>(kernels.gradient_doubles(g)),
             sums = layout.give_each_slot<double>(max_rows * bias.dim);
  TaskMemory memory(slots_for(parts.size()), layout);
  share_out(std::ssize(parts), products(g.forward), [&](std::int64_t n) {
    const F64BiasPart& part = parts[static_cast<std::size_t>(n)];
    const TaskMemory::Slot slot(memory);
    const double* sum = slot[sums];
    std::fill_n(slot[sums], max_rows * bias.dim, 0.0);
    kernels.bias_gradient(g, part, slot[scratch], slot[sums]);
    const BiasRows rows = bias_rows(g, part.batch_entry);
    Shape at{part.batch_entry, part.head, rows.first + part.first_row, 0};
    const std::int64_t end = at.length + std::min(max_rows, rows.count - part.first_row);
    const Written written{bias.tensor, g.accumulates, pass};
    for (; at.length < end; ++at.length)
      for (at.dim = 0; at.dim < bias.dim; ++at.dim, ++sum)
        if (written.takes({sum, 1}, bias.marks[bias.element(at.batch, at.heads, at.length, at.dim)]))
          written.put(at, *sum);
  });
}

void run_sink(const F64Kernels& kernels, const GradientCall& g) {
  const std::int64_t count = g.sink.batch * g.sink.heads;
  if (count == 0) return;
  Layout layout;
  const auto scratch = layout.give_each_slot<double>(kernels.gradient_doubles(g));
  TaskMemory memory(slots_for(static_cast<std::size_t>(count)), layout);
  share_out(count, products(g.forward), [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    kernels.sink_gradient(g, n / g.sink.heads, n % g.sink.heads, slot[scratch]);
  });
}

void run(const F64Kernels& kernels, const GradientCall& g, Pass pass) {
  if (g.q.data || g.k.data || g.v.data) run_rows(kernels, g, pass);
  if (g.bias.tensor.data) run_bias(kernels, g, pass);
  if (g.sink.tensor.data) run_sink(kernels, g);
}

}  // namespace

Reason f64_refuses(const Problem& p) {
  if (p.inputs.q.dtype == DType::f64) return {};
  return [&p] { return std::string("it takes f64, not ") + name_of(p.inputs.q.dtype); };
}

bool attend_f64(const Target& target, const Problem& problem) {
  const LoweredCall lowered(problem);
  const Call& c = lowered.call;
  const std::vector<F64Panel> panels = panels_of(c);
  if (panels.empty()) return false;
  Layout layout;
  const auto scratch = layout.give_each_slot<double>(target.f64.attend_doubles(c));
  TaskMemory memory(slots_for(panels.size()), layout);
  share_out(std::ssize(panels), products(c), [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    target.f64.attend(c, panels[static_cast<std::size_t>(n)], slot[scratch]);
  });
  return lowered.needs_repair != 0;
}

void gradient_f64(const Target& target, const GradientCall& g) { run(target.f64, g, Pass::first); }

void repair(const GradientCall& g) { run(best_target().repairs.gradients, g, Pass::repair); }

}  // namespace heed::cpu
