// SPDX-License-Identifier: Apache-2.0
// heed check: every kernel against the reference, element by element, under the computed bound.
#include "heed/check.hpp"

#include <fmt/core.h>

#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.hpp"
#include "buffer.hpp"
#include "call_options.hpp"
#include "command.hpp"
#include "heed/gradient.hpp"
#include "interruption.hpp"
#include "random_values.hpp"
#include "shape_options.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

struct CheckOptions {
  ShapeOptions shape{.default_length = 256};
  std::optional<float> at_most{};
  bool is_backward = false;
};

struct Outcome {
  std::string kernel;
  std::string refusal{};  // why it cannot take the problem; empty if it did
  Check check{};
  bool failed = false;
};

struct Tensors {
  Buffer q, k, v, out, log_sum_exp;
  Inputs inputs() const { return {.q = q.view(), .k = k.view(), .v = v.view()}; }
  Outputs outputs() { return {.out = out.writable(), .log_sum_exp = log_sum_exp.writable()}; }
};

Tensors random_tensors(const ShapeOptions& options, const Extents& extents) {
  const Shape q_shape{extents.batch, extents.heads, extents.queries, extents.head_dim};
  const Shape k_shape{extents.batch, extents.kv_heads, extents.keys, extents.head_dim};
  Tensors tensors{.q = Buffer(q_shape, options.dtype),
                  .k = Buffer(k_shape, options.dtype),
                  .v = Buffer(k_shape, options.dtype),
                  .out = Buffer(q_shape, options.dtype),
                  .log_sum_exp = Buffer({extents.batch, extents.heads, extents.queries, 1},
                                        options.dtype == DType::f64 ? DType::f64 : DType::f32)};
  fill_random(tensors.q, {.seed = options.seed, .stream = Stream::q});
  fill_random(tensors.k, {.seed = options.seed, .stream = Stream::k});
  fill_random(tensors.v, {.seed = options.seed, .stream = Stream::v});
  return tensors;
}

// Why the plan refuses a kernel; empty if it does not.
std::string reason_against(const std::string& kernel, const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts)
    if (verdict.kernel == kernel) return verdict.reason;
  return "";
}

Options with_kernel(Options options, const std::string& kernel) {
  options.kernel = kernel;
  return options;
}

// Leaves what the kernel wrote in `tensors`.
void run_kernel(const std::string& kernel, Tensors& tensors, const Options& chosen) {
  // An element that a kernel forgets is a NaN, and a NaN where the reference has a number is a miss.
  tensors.out.fill(std::numeric_limits<float>::quiet_NaN());
  tensors.log_sum_exp.fill(std::numeric_limits<float>::quiet_NaN());
  attention(tensors.inputs(), tensors.outputs(), with_kernel(chosen, kernel));
}

// The reference is computed once, when the first kernel has something to compare.
const Expected& expected_of(std::optional<Expected>& expected, Tensors& tensors, const Options& chosen,
                            const Console& console, const Interruption& interruption) {
  if (!expected)
    expected.emplace(tensors.inputs(), tensors.outputs(), with_kernel(chosen, ""),
                     [&](std::int64_t rows, std::int64_t of) {
                       interruption.check();
                       console.progress(fmt::format("computing the reference: {} of {} rows",
                                                    readable_count(rows), readable_count(of)));
                     });
  return *expected;
}

// Of the kernels that were to be checked, `count`.
void report(const Console& console, const std::vector<Outcome>& outcomes, std::size_t count,
            const std::string& problem) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  Table table({{"kernel", Column::Side::left},
               {"compared"},
               {"beyond bound"},
               {"worst error"},
               {"of bound"},
               {"verdict", Column::Side::left}});
  bool failed = false;
  for (const Outcome& outcome : outcomes) {
    failed |= outcome.failed;
    if (!outcome.refusal.empty()) {
      kernels.push_back({{"kernel", outcome.kernel}, {"refused", outcome.refusal}});
      table.add({outcome.kernel, "", "", "", "", "refused: " + outcome.refusal});
      continue;
    }
    const Check& found = outcome.check;
    kernels.push_back({{"kernel", outcome.kernel},
                       {"compared", found.compared},
                       {"beyond_bound", found.beyond_bound},
                       {"worst_error", found.worst_error},
                       {"worst_error_in_bounds", found.worst_error_in_bounds},
                       {"failed", outcome.failed},
                       {"first_miss", found.first_miss}});
    table.add({outcome.kernel, readable_count(found.compared), readable_count(found.beyond_bound),
               readable_error(found.worst_error), readable_error(found.worst_error_in_bounds),
               outcome.failed ? console.paint(Style::bad, "failed") : console.paint(Style::good, "right")});
  }
  nlohmann::ordered_json object = {{"problem", problem}, {"failed", failed}, {"kernels", kernels}};
  if (outcomes.size() < count) object["interrupted_after"] = outcomes.size();
  console.result(object);
  console.print(table.text(console));
  if (outcomes.size() < count)
    console.print(fmt::format("Interrupted after {} of {} kernels.", outcomes.size(), count));
}

std::string sentence_of(const Outcome& failed, const std::optional<float>& at_most) {
  const Check& found = failed.check;
  if (found.beyond_bound > 0)
    return fmt::format("{}: {} of {} elements are beyond their bound; {}", failed.kernel, found.beyond_bound,
                       found.compared, found.first_miss);
  return fmt::format("{}: the worst error is {:.3g} of its bound, more than --at-most {}", failed.kernel,
                     found.worst_error_in_bounds, at_most.value_or(1));
}

// What a kernel is asked for, whichever way it goes.
struct Trial {
  std::vector<std::string> kernels{};
  std::vector<Verdict> verdicts{};
  std::function<Check(const std::string& kernel)> run{};
};

Trial forward_trial(Tensors& tensors, const Options& chosen, Console& console,
                    const Interruption& interruption) {
  return {kernel_names(), plan(tensors.inputs(), tensors.outputs(), chosen),
          [&, expected = std::optional<Expected>()](const std::string& kernel) mutable {
            run_kernel(kernel, tensors, chosen);
            return expected_of(expected, tensors, chosen, console, interruption).check(tensors.outputs());
          }};
}

// The gradients by q, k and v of a random one by out; `tensors` hold what the forward pass saved.
struct GradientTensors {
  Buffer out, q, k, v;

  GradientTensors(const ShapeOptions& options, const Tensors& of)
      : out(of.q.shape(), options.dtype),
        q(of.q.shape(), options.dtype),
        k(of.k.shape(), options.dtype),
        v(of.v.shape(), options.dtype) {
    fill_random(out, {.seed = options.seed, .stream = Stream::x});
  }
  Gradients views() { return {.out = out.view(), .q = q.writable(), .k = k.writable(), .v = v.writable()}; }
};

Trial backward_trial(Tensors& tensors, GradientTensors& gradients, const Options& chosen) {
  attention(tensors.inputs(), tensors.outputs(), with_kernel(chosen, ""));
  const Saved saved{tensors.out.view(), tensors.log_sum_exp.view()};
  return {backward_kernel_names(), plan(tensors.inputs(), saved, gradients.views(), chosen),
          [&, saved](const std::string& kernel) {
            for (Buffer* written : {&gradients.q, &gradients.k, &gradients.v})
              written->fill(std::numeric_limits<float>::quiet_NaN());
            attention_backward(tensors.inputs(), saved, gradients.views(), with_kernel(chosen, kernel));
            return check(tensors.inputs(), saved, gradients.views(), with_kernel(chosen, ""));
          }};
}

// Those of the first kernels, where a signal came.
std::vector<Outcome> outcomes_of(const Trial& trial, const std::vector<std::string>& kernels,
                                 const CheckOptions& options, const Console& console,
                                 const Interruption& interruption) {
  const bool is_forced = !options.shape.kernel.empty();
  std::vector<Outcome> outcomes;
  try {
    for (const std::string& name : kernels) {
      interruption.check();
      console.progress(fmt::format("{} of {}: checking {}", outcomes.size() + 1, kernels.size(), name));
      Outcome outcome{.kernel = name, .refusal = reason_against(name, trial.verdicts)};
      // A kernel asked for by name is run in any case: if it refuses, nothing has been checked.
      if (outcome.refusal.empty() || is_forced) outcome.check = trial.run(name);
      outcome.failed = outcome.check.beyond_bound > 0 ||
                       (options.at_most && !(outcome.check.worst_error_in_bounds <= *options.at_most));
      outcomes.push_back(std::move(outcome));
    }
  } catch (const Interrupted&) {  // with what there is
  }
  console.progress("");
  return outcomes;
}

Status check_kernels(const CheckOptions& options, Console& console) {
  options.shape.use_threads();
  const Extents extents = resolve(options.shape);
  const CallOptions chosen = make_options(options.shape, extents);
  Tensors tensors = random_tensors(options.shape, extents);
  std::optional<GradientTensors> gradients;
  if (options.is_backward) gradients.emplace(options.shape, tensors);
  const Interruption interruption(console);
  const Trial trial = gradients ? backward_trial(tensors, *gradients, chosen.options)
                                : forward_trial(tensors, chosen.options, console, interruption);
  const std::vector<std::string> kernels =
      options.shape.kernel.empty() ? trial.kernels : std::vector<std::string>{options.shape.kernel};
  const std::vector<Outcome> outcomes = outcomes_of(trial, kernels, options, console, interruption);
  const std::string problem = command_line(options.shape, extents) + (gradients ? " --backward" : "");
  report(console, outcomes, kernels.size(), problem);
  Status status = outcomes.size() < kernels.size() ? interrupted : done;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.failed) continue;
    status = failed_check;
    console.error(sentence_of(outcome, options.at_most));
    console.error(fmt::format("reproduce: heed check {} --kernel {}{}", problem, outcome.kernel,
                              options.at_most ? fmt::format(" --at-most {}", *options.at_most) : ""));
  }
  return status;
}

}  // namespace

Action add_check(CLI::App& app) {
  describe(
      app, "Run every kernel on random inputs and compare it with the reference",
      "Exits with 1 if any element of any kernel misses the reference by more than its bound.\n\n"
      "Examples:\n"
      "  heed check --length 64\n"
      "  heed check --heads 8 --kv-heads 2 --head-dim 32 --length 33 --context-length 57 --causal --align "
      "ends\n"
      "  heed check --batch 1 --length 40 --window 7,0 --dtype bf16 --json\n"
      "  heed check --backward --length 64 --causal");
  auto options = std::make_shared<CheckOptions>();
  options->shape.add_to(app);
  add_switch(app,
             {.name = "--backward", .help = "Check the gradients by q, k and v, and the kernels for them"},
             options->is_backward);
  add_value(app,
            {.name = "--at-most",
             .help = "Also fail if the worst error exceeds this share of its bound",
             .value = "SHARE"},
            [options = options.get()](const std::string& text) {
              options->at_most = parse_float("--at-most", text);
            });
  return [options](Console& console) { return check_kernels(*options, console); };
}

}  // namespace heed::tool
