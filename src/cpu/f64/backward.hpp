// SPDX-License-Identifier: Apache-2.0
// The gradients in f64. A panel of queries against a block of keys gives dR and the weights (key, row); dQ is
// a product over keys, in which rows are lanes, dK and dV are products over rows, in which dimensions are. A
// cell (cpu/f64/call.hpp) adds to sums that the driver holds; the driver writes them.
#pragma once
#include <cstdint>

#include "cpu/f64/repair.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// A panel and all that is read of its queries.
template <class D>
struct F64GradientPanel {
  using F = typename D::F;

  const GradientCall& g;
  const Call& c = g.forward;
  double* const memory;
  F64Scores<D> rows;
  const std::int64_t dim = round_up(c.dim, D::lanes), value_dim = round_up(c.value_dim, D::lanes);
  double* const out = memory + F64Scores<D>::doubles(c);            // dO, (value_dim, width)
  double* const q_rows = out + c.value_dim * f64_panel_rows;        // (rows, dim)
  double* const out_rows = q_rows + dim * f64_panel_rows;           // dO, (rows, value_dim)
  double* const lse = out_rows + value_dim * f64_panel_rows;        // +inf for a row that gives nothing (G6)
  double* const gives = lse + f64_panel_rows;                       // 0 for such a row
  double* const delta = gives + f64_panel_rows;                     // less dL, but for repair
  double* const from_lse = delta + f64_panel_rows;                  // dL
  double* const applied = from_lse + f64_panel_rows;                // (key, row): a of G2
  double* const score = applied + f64_block_keys * f64_panel_rows;  // dS, then dR
  double* const capped = score + f64_block_keys * f64_panel_rows;   // t / cap
  // For repair: which pairs there are, 0 or 1, and a block's keys and values.
  double* const shown = capped + f64_block_keys * f64_panel_rows;
  double* const k_rows = shown + f64_block_keys * f64_panel_rows;
  double* const v_rows = k_rows + f64_block_keys * c.dim;

  static std::int64_t doubles(const Call& c) {
    const std::int64_t of_row = round_up(c.dim, D::lanes) + c.value_dim + round_up(c.value_dim, D::lanes) + 4,
                       of_block = D::repairs ? f64_block_keys * (f64_panel_rows + c.dim + c.value_dim) : 0;
    return F64Scores<D>::doubles(c) + (of_row + 3 * f64_block_keys) * f64_panel_rows + of_block;
  }

  F64GradientPanel(const GradientCall& call, const F64Panel& panel, double* scratch)
      : g(call), memory(scratch), rows(call.forward, panel, scratch) {
    rows.transpose(g.out_gradient, c.value_dim, out);
    for (std::int64_t r = 0; r < rows.width; ++r) read_row(r);
  }

  F64Factor keys(const F64Keys& keys) const { return rows.k_of(keys, k_rows); }

  // The weights after dropout and dS of a block of keys, k.
  void compute(const F64Keys& keys, const F64Factor& k) {
    rows.compute(keys, k, Writing::nothing, applied, capped);
    multiply<D>({out, rows.width, rows.v_of(keys, v_rows), keys.count, c.value_dim, score}, Sums::begin);
    if constexpr (D::repairs)
      weigh_again(keys);
    else
      weigh(keys);
  }

  // dS becomes dR (G4).
  void apply_slope(const F64Keys& keys) {
    if (c.cap == 0) return;
    for (std::int64_t n = 0; n < keys.count * rows.width; n += D::lanes) {
      const F t = D::load(capped + n), slope = D::load(score + n) * (1.0 - t * t);
      D::store(score + n, D::repairs ? (D::load(shown + n) == F{} ? F{} : slope) : slope);
    }
  }

  // Whether row r sees one of these keys, whose scores are in `applied`.
  bool sees_any(std::int64_t r, const F64Keys& keys) const {
    for (std::int64_t n = 0; n < keys.count; ++n)
      if (applied[n * rows.width + r] != f64_minus_infinity) return true;
    return false;
  }

 private:
  void weigh(const F64Keys& keys) {
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

  // As the reference does, step by step.
  void weigh_again(const F64Keys& keys) {
    for (std::int64_t n = 0; n < keys.count; ++n)
      for (std::int64_t r = 0; r < rows.width; ++r) {
        double &a = applied[n * rows.width + r], &ds = score[n * rows.width + r];
        const bool is_pair = gives[r] != 0 && a != f64_minus_infinity;
        shown[n * rows.width + r] = is_pair ? 1 : 0;
        const double weight = is_pair ? __builtin_exp(a - lse[r]) : 0;  // G1
        const bool drops = is_pair && c.drop_probability > 0;
        const double keep = !drops ? 1 : rows.keeps(r, keys.first + n) ? rows.keep_scale() : 0;
        a = weight * keep;                                                 // G2
        ds = is_pair ? weight * (keep * ds - delta[r] + from_lse[r]) : 0;  // G3
      }
  }

  void read_row(std::int64_t r) {
    const bool is_query = r < rows.panel.queries;
    lse[r] = is_query ? rows.element(c.log_sum_exp, r, 0) : f64_minus_infinity;
    delta[r] = from_lse[r] = 0;
    const bool is_read = lse[r] != f64_minus_infinity;
    gives[r] = is_read ? 1 : 0;
    if (!is_read) lse[r] = -f64_minus_infinity;
    const std::int64_t e = is_query ? rows.place(c.out, r, 0) : 0;
    for (std::int64_t d = 0; d < dim; ++d)
      q_rows[r * dim + d] = is_read && d < c.dim ? rows.q[d * rows.width + r] : 0;
    for (std::int64_t d = 0; d < value_dim; ++d) {
      if (d < c.value_dim && !is_read) out[d * rows.width + r] = 0;
      const double x = is_read && d < c.value_dim ? out[d * rows.width + r] : 0;
      out_rows[r * value_dim + d] = x;
      if (is_read && d < c.value_dim) delta[r] += x * f64_read(c.out, e + d * c.out.stride.dim);
    }
    if (is_query && g.log_sum_exp_gradient.data) from_lse[r] = rows.element(g.log_sum_exp_gradient, r, 0);
    if (!D::repairs && is_read) delta[r] -= from_lse[r];
  }
};

template <class D>
struct F64Backward {
  static std::int64_t panels_of(std::int64_t queries) { return (queries - 1) / f64_panel_rows + 1; }

  static std::int64_t doubles(const GradientCall& g) {
    return F64GradientPanel<D>::doubles(g.forward) + g.forward.dim * f64_panel_rows;
  }

  static void run(const GradientCall& g, const F64Cell& cell, const F64Sums& sums, double* scratch) {
    const Call& c = g.forward;
    const std::int64_t queries = c.sequences[cell.batch_entry].queries, of_head = panels_of(queries);
    for (std::int64_t n = cell.first_panel; n < cell.first_panel + cell.panels; ++n) {
      const std::int64_t first = n % of_head * f64_panel_rows;
      const F64Panel panel{cell.batch_entry, c.head(cell.kv_head, n / of_head), first,
                           min(f64_panel_rows, queries - first)};
      if (sees_some(c, panel, cell)) add(g, panel, cell, sums, scratch);
    }
  }

  // Whether ranges let a query see a key of the cell.
  static bool sees_some(const Call& c, const F64Panel& at, const F64Cell& cell) {
    const Sequence& s = c.sequences[at.batch_entry];
    const F64Query first{c, s, at.batch_entry, at.head, at.first_query},
        last{c, s, at.batch_entry, at.head, at.first_query + at.queries - 1};
    return cell.first_key < last.end &&
           (cell.first_key + cell.keys > first.begin || cell.first_key < c.front);
  }

  static void add(const GradientCall& g, const F64Panel& at, const F64Cell& cell, const F64Sums& sums,
                  double* scratch) {
    const Call& c = g.forward;
    F64GradientPanel<D> panel(g, at, scratch);
    const F64Scores<D>& rows = panel.rows;
    double* const dq = scratch + F64GradientPanel<D>::doubles(c);  // (dim, width)
    const std::int64_t row =
        g.first_row[at.batch_entry] + at.head * c.sequences[at.batch_entry].queries + at.first_query;
    // A sum is one chain through all cells where it is the reference's.
    for (std::int64_t n = 0; n < c.dim * rows.width; ++n) dq[n] = 0;
    for (std::int64_t r = 0; D::repairs && sums.q && r < at.queries; ++r)
      for (std::int64_t d = 0; d < c.dim; ++d) dq[d * rows.width + r] = sums.q[(row + r) * c.dim + d];
    for (std::int64_t first = cell.first_key; first < cell.first_key + cell.keys; first += f64_block_keys) {
      const F64Keys keys{first, min(f64_block_keys, cell.first_key + cell.keys - first)};
      if (!rows.sees_any(keys)) continue;
      const F64Factor k = panel.keys(keys);
      panel.compute(keys, k);
      const std::int64_t key = g.key(cell.batch_entry, cell.kv_head, keys.first);
      const auto add_by_rows = [&](double* of, std::int64_t width, const double* from, const double* pairs) {
        if (!of) return;
        double* const to = of + key * width;
        if constexpr (D::repairs)
          add_rows<D>(pairs, panel.shown, rows.width, from, width, at.queries, keys.count, to);
        else
          multiply<D>({from, width, {pairs, rows.width, 1}, keys.count, at.queries, to}, Sums::go_on);
      };
      add_by_rows(sums.v, sums.v_width, panel.out_rows, panel.applied);
      panel.apply_slope(keys);
      add_by_rows(sums.k, sums.k_width, panel.q_rows, panel.score);
      if (!sums.q) continue;
      if constexpr (D::repairs)
        add_keys<D>(panel.score, panel.shown, rows.width, k.data, c.dim, keys.count, dq);
      else
        multiply<D>({panel.score, rows.width, transposed(k), c.dim, keys.count, dq}, Sums::go_on);
    }
    if (!sums.q) return;
    for (std::int64_t r = 0; r < at.queries; ++r)
      for (std::int64_t d = 0; d < c.dim; ++d) {
        double& sum = sums.q[(row + r) * c.dim + d];
        sum = D::repairs ? dq[d * rows.width + r] : sum + dq[d * rows.width + r];
      }
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
        // Where keys share an element, the reference adds up row after row.
        const std::int64_t step = D::repairs && bias.dim == 1 ? 1 : f64_panel_rows;
        for (std::int64_t first = part.first_row; first < end; first += step)
          add_bias(g, {b, h, first, min(step, end - first)}, bias.length == 1 ? 0 : first - part.first_row,
                   scratch, sums);
        if (bias.heads != 1) break;
      }
      if (has_entries) break;
    }
  }

  // Row r of the panel is row `first_sum` + r of the sums, or the only one.
  static void add_bias(const GradientCall& g, const F64Panel& at, std::int64_t first_sum, double* scratch,
                       double* sums) {
    const SharedGradient& bias = g.bias;
    F64GradientPanel<D> panel(g, at, scratch);
    for (std::int64_t first = 0; first < panel.rows.end; first += f64_block_keys) {
      const F64Keys keys{first, min(f64_block_keys, panel.rows.end - first)};
      if (!panel.rows.sees_any(keys)) continue;
      panel.compute(keys, panel.keys(keys));
      for (std::int64_t r = 0; r < at.queries; ++r)
        for (std::int64_t n = 0; n < keys.count; ++n)
          sums[(bias.length == 1 ? 0 : first_sum + r) * bias.dim + (bias.dim == 1 ? 0 : first + n)] +=
              panel.score[n * panel.rows.width + r];
    }
  }

  // G7, of the heads and batch entries that share the sink. A query that sees no key has the sink as its
  // log-sum-exp.
  static void run_sink(const GradientCall& g, std::int64_t entry, std::int64_t head, double* scratch) {
    const Call& c = g.forward;
    const SharedGradient& sink = g.sink;
    const std::int64_t e = f64_element(sink.tensor, entry, head, 0, 0);
    unsigned char& mark = sink.marks[sink.element(entry, head, 0, 0)];
    if (D::repairs && !mark) return;
    double sum = 0;
    for (std::int64_t b = sink.batch == 1 ? 0 : entry; b < (sink.batch == 1 ? c.batch : entry + 1); ++b)
      for (std::int64_t h = sink.heads == 1 ? 0 : head; h < (sink.heads == 1 ? c.heads : head + 1); ++h)
        for (std::int64_t i = 0; i < c.sequences[b].queries; i += f64_panel_rows)
          add_sink(g, {b, h, i, min(f64_panel_rows, c.sequences[b].queries - i)}, scratch, sum);
    const double before = g.accumulates ? f64_read(sink.tensor, e) : 0;
    if (D::repairs || is_number(sum))
      f64_write(sink.tensor, e, before + sum);
    else
      mark = 1;
  }

  static void add_sink(const GradientCall& g, const F64Panel& at, double* scratch, double& total) {
    const Call& c = g.forward;
    F64GradientPanel<D> panel(g, at, scratch);
    const double logit = f64_read(c.sink, f64_element(c.sink, at.batch_entry, at.head, 0, 0));
    bool sees[f64_panel_rows] = {};
    for (std::int64_t first = 0; first < panel.rows.end; first += f64_block_keys) {
      const F64Keys keys{first, min(f64_block_keys, panel.rows.end - first)};
      if (!panel.rows.sees_any(keys)) continue;
      panel.rows.compute(keys, panel.keys(keys), Writing::nothing, panel.applied);
      for (std::int64_t r = 0; r < at.queries; ++r) sees[r] |= panel.sees_any(r, keys);
    }
    double sum = D::repairs ? total : 0;  // the reference's is one chain
    for (std::int64_t r = 0; r < at.queries; ++r)
      if (!sees[r] || panel.gives[r] == 0)
        sum += panel.from_lse[r];
      else if (D::repairs)
        sum += __builtin_exp(logit - panel.lse[r]) * (panel.from_lse[r] - panel.delta[r]);
      else
        sum -= __builtin_exp(logit - panel.lse[r]) * panel.delta[r];
    total = D::repairs ? sum : total + sum;
  }
};

template <class D>
constexpr F64Kernels f64_gradients() {
  return {.lanes = D::lanes,
          .gradient_doubles = F64Backward<D>::doubles,
          .gradient = F64Backward<D>::run,
          .bias_gradient = F64Backward<D>::run_bias,
          .sink_gradient = F64Backward<D>::run_sink};
}

template <Vector S>
constexpr F64Kernels f64_kernels() {
  F64Kernels kernels = f64_gradients<Doubles<S>>();
  kernels.attend_doubles = F64Attend<S>::doubles;
  kernels.attend = [](const Call& c, const F64Panel& panel, double* scratch) {
    F64Attend<S>(c, panel, scratch).run();
  };
  return kernels;
}

template <Vector S>
constexpr F64Repairs f64_repairs() {
  using D = RoundedProducts<S>;
  return {.needs_repair = row_needs_repair,
          .row_doubles = F64RepairRows<D>::doubles,
          .rows = [](const Call& c, const F64Panel& panel,
                     double* scratch) { F64RepairRows<D>(c, panel, scratch).run(); },
          .gradients = f64_gradients<D>()};
}

}  // namespace heed::cpu::HEED_THIS_TARGET
