// SPDX-License-Identifier: Apache-2.0
// The gradients in f64. A panel of queries against a block of keys gives dR and the weights (key, row); dQ is
// a product over keys, in which rows are lanes, dK and dV are products over rows, in which dimensions are. A
// cell (cpu/f64/call.hpp) adds to sums that the driver holds; the driver writes them.
#pragma once
#include <cstdint>

#include "cpu/f64/attend.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// A panel and all that is read of its queries.
template <Vector S>
struct F64GradientPanel {
  using D = Doubles<S>;
  using F = typename D::F;

  const GradientCall& g;
  const Call& c = g.forward;
  double* const memory;
  F64Scores<S> rows;
  const std::int64_t dim = round_up(c.dim, D::lanes), value_dim = round_up(c.value_dim, D::lanes);
  double* const out = memory + F64Scores<S>::doubles(c);            // dO, (value_dim, width)
  double* const q_rows = out + c.value_dim * f64_panel_rows;        // (rows, dim)
  double* const out_rows = q_rows + dim * f64_panel_rows;           // dO, (rows, value_dim)
  double* const lse = out_rows + value_dim * f64_panel_rows;        // +inf for a row that gives nothing (G6)
  double* const delta = lse + f64_panel_rows;                       // delta - dL
  double* const applied = delta + f64_panel_rows;                   // (key, row): a of G2
  double* const score = applied + f64_block_keys * f64_panel_rows;  // dS, then dR
  double* const capped = score + f64_block_keys * f64_panel_rows;   // t / cap

  static std::int64_t doubles(const Call& c) {
    const std::int64_t of_row = round_up(c.dim, D::lanes) + c.value_dim + round_up(c.value_dim, D::lanes) + 2;
    return F64Scores<S>::doubles(c) + (of_row + 3 * f64_block_keys) * f64_panel_rows;
  }

  F64GradientPanel(const GradientCall& call, const F64Panel& panel, double* scratch)
      : g(call), memory(scratch), rows(call.forward, panel, scratch) {
    rows.transpose(g.out_gradient, c.value_dim, out);
    for (std::int64_t r = 0; r < rows.width; ++r) read_row(r);
  }

  // The weights after dropout and dS of a block of keys.
  void compute(const F64Keys& keys) {
    rows.compute(keys, Writing::nothing, applied, capped);
    multiply<D>({out, rows.width, rows.keys_of(c.v, keys.first), keys.count, c.value_dim, score},
                Sums::begin);
    const bool drops = c.drop_probability > 0;
    for (std::int64_t n = 0; n < keys.count; ++n)
      for (std::int64_t w = 0; w < rows.width; w += D::lanes) {
        double *const a = applied + n * rows.width + w, *const ds = score + n * rows.width + w;
        const F s = D::load(a), weight = exponential<D>(s - D::load(lse + w));
        F kept = D::fill(1);
        for (int lane = 0; drops && lane < D::lanes; ++lane)
          kept[lane] = rows.keeps(w + lane, keys.first + n) ? rows.keep_scale() : 0;
        const F gradient = weight * (kept * D::load(ds) - D::load(delta + w));
        const auto hidden = s == f64_minus_infinity;
        D::store(a, hidden ? F{} : weight * kept);
        D::store(ds, hidden ? F{} : gradient);
      }
  }

  // dS becomes dR (G4).
  void apply_slope(const F64Keys& keys) {
    if (c.cap == 0) return;
    for (std::int64_t n = 0; n < keys.count * rows.width; n += D::lanes) {
      const F t = D::load(capped + n);
      D::store(score + n, D::load(score + n) * (1.0 - t * t));
    }
  }

 private:
  void read_row(std::int64_t r) {
    const bool is_query = r < rows.panel.queries;
    lse[r] = is_query ? rows.element(c.log_sum_exp, r, 0) : f64_minus_infinity;
    delta[r] = 0;
    const bool gives = lse[r] != f64_minus_infinity;
    if (!gives) lse[r] = -f64_minus_infinity;
    for (std::int64_t d = 0; d < dim; ++d)
      q_rows[r * dim + d] = gives && d < c.dim ? rows.q[d * rows.width + r] : 0;
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const bool is_read = gives && d < c.value_dim;
      if (d < c.value_dim && !is_read) out[d * rows.width + r] = 0;
      const double x = is_read ? out[d * rows.width + r] : 0;
      out_rows[r * value_dim + d] = x;
      if (is_read) delta[r] += x * rows.element(c.out, r, d);
    }
    if (gives && g.log_sum_exp_gradient.data) delta[r] -= rows.element(g.log_sum_exp_gradient, r, 0);
  }
};

template <Vector S>
struct F64Backward {
  using D = Doubles<S>;

  static std::int64_t panels_of(std::int64_t queries) { return (queries - 1) / f64_panel_rows + 1; }

  static std::int64_t doubles(const GradientCall& g) {
    return F64GradientPanel<S>::doubles(g.forward) + g.forward.dim * f64_panel_rows;
  }

  static void run(const GradientCall& g, const F64Cell& cell, const F64Sums& sums, double* scratch) {
    const Call& c = g.forward;
    const std::int64_t queries = c.sequences[cell.batch_entry].queries, of_head = panels_of(queries);
    for (std::int64_t n = cell.first_panel; n < cell.first_panel + cell.panels; ++n) {
      const std::int64_t first = n % of_head * f64_panel_rows;
      const F64Panel panel{cell.batch_entry, c.head(cell.kv_head, n / of_head), first,
                           min(f64_panel_rows, queries - first)};
      add(g, panel, cell, sums, scratch);
    }
  }

  static void add(const GradientCall& g, const F64Panel& at, const F64Cell& cell, const F64Sums& sums,
                  double* scratch) {
    const Call& c = g.forward;
    F64GradientPanel<S> panel(g, at, scratch);
    const F64Scores<S>& rows = panel.rows;
    double* const dq = scratch + F64GradientPanel<S>::doubles(c);  // (dim, width)
    bool is_seen = false;
    for (std::int64_t first = cell.first_key; first < cell.first_key + cell.keys; first += f64_block_keys) {
      const F64Keys keys{first, min(f64_block_keys, cell.first_key + cell.keys - first)};
      if (!rows.sees_any(keys)) continue;
      panel.compute(keys);
      const std::int64_t key = g.key(cell.batch_entry, cell.kv_head, keys.first);
      const F64Factor of_keys{nullptr, rows.width, 1};
      if (sums.v)
        multiply<D>({panel.out_rows,
                     panel.value_dim,
                     {panel.applied, of_keys.column, of_keys.term},
                     keys.count,
                     at.queries,
                     sums.v + key * sums.v_width},
                    Sums::go_on);
      panel.apply_slope(keys);
      if (sums.k)
        multiply<D>({panel.q_rows,
                     panel.dim,
                     {panel.score, of_keys.column, of_keys.term},
                     keys.count,
                     at.queries,
                     sums.k + key * sums.k_width},
                    Sums::go_on);
      if (sums.q)
        multiply<D>({panel.score, rows.width, rows.dims_of(c.k, keys.first), c.dim, keys.count, dq},
                    is_seen ? Sums::go_on : Sums::begin);
      is_seen = true;
    }
    if (!sums.q || !is_seen) return;
    const std::int64_t row =
        g.first_row[at.batch_entry] + at.head * c.sequences[at.batch_entry].queries + at.first_query;
    for (std::int64_t r = 0; r < at.queries; ++r)
      for (std::int64_t d = 0; d < c.dim; ++d) sums.q[(row + r) * c.dim + d] += dq[d * rows.width + r];
  }

  // The gradient by the bias of one part: all batch entries, heads and rows that share its elements, in
  // order. The sums are (rows of a panel, bias.dim), or one row; they are 0.
  static void run_bias(const GradientCall& g, const F64BiasPart& part, double* scratch, double* sums) {
    const Call& c = g.forward;
    const SharedGradient& bias = g.bias;
    const bool has_rows = bias.length != 1, has_entries = bias.batch != 1 || (g.is_packed && has_rows);
    for (std::int64_t b = has_entries ? part.batch_entry : 0; b < c.batch; ++b) {
      for (std::int64_t h = bias.heads == 1 ? 0 : part.head; h < c.heads; ++h) {
        const std::int64_t queries = c.sequences[b].queries;
        const std::int64_t end = has_rows ? min(part.first_row + f64_panel_rows, queries) : queries;
        for (std::int64_t first = part.first_row; first < end; first += f64_panel_rows)
          add_bias(g, {b, h, first, min(f64_panel_rows, end - first)}, scratch, sums);
        if (bias.heads != 1) break;
      }
      if (has_entries) break;
    }
  }

  static void add_bias(const GradientCall& g, const F64Panel& at, double* scratch, double* sums) {
    const SharedGradient& bias = g.bias;
    F64GradientPanel<S> panel(g, at, scratch);
    for (std::int64_t first = 0; first < panel.rows.end; first += f64_block_keys) {
      const F64Keys keys{first, min(f64_block_keys, panel.rows.end - first)};
      if (!panel.rows.sees_any(keys)) continue;
      panel.compute(keys);
      for (std::int64_t r = 0; r < at.queries; ++r)
        for (std::int64_t n = 0; n < keys.count; ++n)
          sums[(bias.length == 1 ? 0 : r) * bias.dim + (bias.dim == 1 ? 0 : first + n)] +=
              panel.score[n * panel.rows.width + r];
    }
  }

  // G7, of the heads and batch entries that share the sink. A query that sees no key has the sink as its
  // log-sum-exp.
  static void run_sink(const GradientCall& g, std::int64_t entry, std::int64_t head, double* scratch) {
    const Call& c = g.forward;
    const SharedGradient& sink = g.sink;
    double sum = 0;
    for (std::int64_t b = sink.batch == 1 ? 0 : entry; b < (sink.batch == 1 ? c.batch : entry + 1); ++b)
      for (std::int64_t h = sink.heads == 1 ? 0 : head; h < (sink.heads == 1 ? c.heads : head + 1); ++h)
        for (std::int64_t i = 0; i < c.sequences[b].queries; i += f64_panel_rows)
          sum += sink_of(g, {b, h, i, min(f64_panel_rows, c.sequences[b].queries - i)}, scratch);
    const std::int64_t e = f64_element(sink.tensor, entry, head, 0, 0);
    const double before = g.accumulates ? f64_read(sink.tensor, e) : 0;
    if (is_number(sum))
      f64_write(sink.tensor, e, before + sum);
    else
      sink.unfinished[sink.element(entry, head, 0, 0)] = 1;
  }

  static double sink_of(const GradientCall& g, const F64Panel& at, double* scratch) {
    const Call& c = g.forward;
    const F64GradientPanel<S> panel(g, at, scratch);
    const double logit = f64_read(c.sink, f64_element(c.sink, at.batch_entry, at.head, 0, 0));
    double sum = 0;
    for (std::int64_t r = 0; r < at.queries; ++r) {
      const bool sees_none = panel.rows.element(c.log_sum_exp, r, 0) == f64_minus_infinity;
      if (sees_none || !sees_any(panel.rows, r)) {
        if (g.log_sum_exp_gradient.data) sum += panel.rows.element(g.log_sum_exp_gradient, r, 0);
      } else {
        sum -= __builtin_exp(logit - panel.lse[r]) * panel.delta[r];
      }
    }
    return sum;
  }

  static bool sees_any(const F64Scores<S>& rows, std::int64_t r) {
    const F64Query query = rows.query(r);
    for (std::int64_t j = 0; j < query.end; ++j)
      if (query.sees(j) && query.added(j) != f64_minus_infinity) return true;
    return false;
  }
};

template <Vector S>
constexpr F64Kernels f64_kernels() {
  return {.lanes = Doubles<S>::lanes,
          .attend_doubles = F64Attend<S>::doubles,
          .attend = [](const Call& c, const F64Panel& panel,
                       double* scratch) { F64Attend<S>(c, panel, scratch).run(); },
          .gradient_doubles = F64Backward<S>::doubles,
          .gradient = F64Backward<S>::run,
          .bias_gradient = F64Backward<S>::run_bias,
          .sink_gradient = F64Backward<S>::run_sink,
          .add_products = [](const F64Product& p) { multiply<RoundedProducts<S>>(p, Sums::go_on); },
          .multiply_floats = [](const F64Product& p) { multiply<ExactProducts<S>>(p, Sums::begin); }};
}

}  // namespace heed::cpu::HEED_THIS_TARGET
