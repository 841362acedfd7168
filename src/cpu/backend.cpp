// SPDX-License-Identifier: Apache-2.0
// The CPU as a backend: everything it offers to the rest of the library, in one place.
#include "cpu/backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/isa/target.hpp"
#include "cpu/projection/driver.hpp"
#include "softmax/state.hpp"
#include "threads/allowed.hpp"
#include "threads/memory.hpp"
#include "threads/pool.hpp"

namespace heed::cpu {
namespace {

Reason lacks(const Target& target) {
  return [&target] { return std::string("this machine lacks ") + target.requires_; };
}

Reason not_named(const Target& target) {
  if (forced_target().empty() || forced_target() == target.name) return {};
  return [] { return "HEED_TARGET is " + forced_target(); };
}

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> list;
  for (const Target* target : targets()) {
    const bool runs_here = target->available();  // asked once: a machine stays what it is
    const auto add = [&](const char* role, Kernel kernel) {
      kernel.name = std::string("cpu.") + role + "." + target->name;
      kernel.device = Device::cpu;
      kernel.unavailable = [target, runs_here] { return runs_here ? not_named(*target) : lacks(*target); };
      list.push_back(std::move(kernel));
    };
    const auto takes_few_rows = [target](const Problem& p) { return decode_refuses(*target, p); };
    const auto takes_many_rows = [target](const Problem& p) { return prefill_refuses(*target, p); };
    add("decode",
        {.refuses = takes_few_rows, .attend = [target](const Problem& p) { return decode(*target, p); }});
    add("prefill",
        {.refuses = takes_many_rows, .attend = [target](const Problem& p) { return prefill(*target, p); }});
    add("backward",
        {.refuses_backward = [target](const GradientProblem& g) { return gradient_refuses(*target, g); },
         .backward = [target](const GradientProblem& g) { return gradient(*target, g); }});
    if (target->f64.attend)
      add("f64", {.refuses = f64_refuses,
                  .attend = [target](const Problem& p) { return attend_f64(*target, p); },
                  .refuses_backward = [](const GradientProblem& g) { return f64_refuses(g.forward); },
                  .backward = [target](const GradientProblem& g) { return gradient(*target, g); }});
    add("stream", {.refuses = takes_many_rows,
                   .begin_stream = [target](const Problem& p) { return begin_stream(*target, p); }});
    add("spread",
        {.refuses = takes_few_rows, .begin_spread = [target](const Problem& p, const Spread& spread) {
           return begin_spread(*target, p, spread);
         }});
  }
  return list;
}

class Cpu final : public Backend {
 public:
  Cpu() : Backend("cpu", Device::cpu, make_kernels()) {}

  std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias) const override {
    return std::make_unique<const CpuProjection>(w, bias, CpuProjection::Ownership::copied);
  }
  std::unique_ptr<const Projection> project_lent(const View& w, const Optional<View>& bias) const override {
    std::vector<float> offsets(bias ? static_cast<std::size_t>(bias->shape.dim) : 0);
    if (bias) copy(*bias, {offsets, bias->shape});
    return std::make_unique<const CpuProjection>(w, offsets, CpuProjection::Ownership::lent);
  }
  void project_all(std::span<const Projected> all) const override { cpu::project_all(all); }
  void add_weight_gradient(const View& x, const View& y, const MutableView& w,
                           const MutableView& bias) const override {
    cpu::add_weight_gradient(x, y, w, bias);
  }
  void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions,
              const Rotary& rotary, std::span<const std::int64_t> lengths) const override {
    cpu::rotate(alike, positions, rotary, lengths);
  }
  Memory allocate(std::size_t bytes) const override {
    threads::ReusedMemory memory = threads::take_memory((bytes + sizeof(float) - 1) / sizeof(float));
    const std::size_t held = memory.get_deleter().bytes;
    return {memory.release(), {&give_back, held}};
  }
  void copy(const View& from, const MutableView& into) const override { cpu::copy(from, into); }
  void add(const View& from, const MutableView& into) const override { cpu::add(from, into); }
  void average_heads(const View& from, const MutableView& into) const override {
    cpu::average_heads(from, into);
  }
  void fill(const MutableView& x, float value) const override { cpu::fill(x, value); }
  void merge(const Outputs& into, const Results& other) const override { cpu::merge(into, other); }

 private:
  static void give_back(void* memory, std::size_t bytes) noexcept {
    threads::ReturnMemory{bytes}(static_cast<float*>(memory));
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const Cpu& only = *new Cpu;  // never destroyed: threads may be at work when the process ends
  return only;
}

// What each kernel takes, on any target.

namespace {

// What is added to scores or limits them, in the units that kernels have for them.
bool leaves_f32(const Problem& p, float x) {
  const softmax::Scaling scaling = softmax::scaling_of(p.scale(), p.cap());
  return !std::isfinite(softmax::in_base_2(x)) || !std::isfinite(scaling.in_units(x));
}

// Kernels count places in f32, and add what the farthest key loses to its score.
bool alibi_leaves_f32(const Problem& p) {
  constexpr std::int64_t max_exact = std::int64_t{1} << 24;
  const std::int64_t farthest = p.queries + p.keys;
  float steepest = 0;
  for (const float slope : p.options.alibi->slopes) steepest = std::max(steepest, std::abs(slope));
  return farthest > max_exact || leaves_f32(p, steepest * static_cast<float>(farthest));
}

// Rows that share a KV head, up to which its keys are better read where they lie than packed. Prefill can
// leave out keys that masks hide from a panel, and spread one head's rows over threads.
std::int64_t max_rows_in_place(const Target& target, const Problem& p) {
  const bool is_f32 = p.inputs.q.dtype == DType::f32 && p.kv_type == Type::f32;
  const bool sees_all = p.options.masks.empty();
  const bool is_shared_by_heads = p.batch * p.kv_heads >= static_cast<std::int64_t>(threads::concurrency());
  return is_f32 && p.keys <= block_keys && sees_all && is_shared_by_heads ? target.max_short_rows
                                                                          : max_decode_rows;
}

}  // namespace

Reason prefill_refuses(const Target& target, const Problem& p) {
  if (p.inputs.q.dtype == DType::f64)
    return [] { return std::string("it takes f32, f16 and bf16, not f64"); };
  if (target.only_bf16 && p.inputs.q.dtype != DType::bf16)
    return [&p] { return std::string("it takes bf16, not ") + name_of(p.inputs.q.dtype); };
  if (target.only_bf16 && p.kv_type != Type::bf16)
    return [&p] { return std::string("it takes a cache of bf16, not ") + name_of(p.cache_type); };
  if (!std::isfinite(softmax::in_base_2(p.scale())))
    return [] { return std::string("options.scale times log2(e) is beyond the range of f32"); };
  if (p.options.softcap && leaves_f32(p, static_cast<float>(*p.options.softcap)))
    return [] { return std::string("options.softcap in units of the scores is beyond the range of f32"); };
  if (p.options.alibi && alibi_leaves_f32(p))
    return [] { return std::string("options.alibi times the farthest distance is beyond what f32 counts"); };
  return {};
}

Reason decode_refuses(const Target& target, const Problem& p) {
  if (p.inputs.q.dtype == DType::f64) return prefill_refuses(target, p);
  const std::int64_t rows = p.kv_heads == 0 ? 0 : p.heads / p.kv_heads * p.queries;
  if (const std::int64_t at_most = max_rows_in_place(target, p); rows > at_most)
    return [rows, at_most] {
      return std::to_string(rows) + " rows share a KV head; it takes at most " + std::to_string(at_most);
    };
  if (p.outputs.scores.into) return [] { return std::string("scores were asked for"); };
  // Scores wait in the weights' own rows until the sum is known, which takes all their bits.
  if (p.outputs.weights && (p.outputs.weights->dtype != DType::f32 || target.only_bf16))
    return [&p] { return "weights were asked for in " + std::string(name_of(p.outputs.weights->dtype)); };
  if (p.outputs.weights && p.outputs.weights->stride.dim != 1)
    return [] { return std::string("weights were asked for that do not lie side by side"); };
  return prefill_refuses(target, p);
}

Reason gradient_refuses(const Target& target, const GradientProblem& g) {
  if (g.forward.value_dim == 0)  // a tile product needs something to sum over
    return [] { return std::string("it takes values of at least one dimension"); };
  if (target.only_bf16 && g.out_gradient.dtype != DType::bf16)
    return [&g] {
      return std::string("it takes gradients of out in bf16, not ") + name_of(g.out_gradient.dtype);
    };
  if (g.forward.options.softcap && *g.forward.options.softcap < 0x1p-126f)  // slopes need its reciprocal
    return [] { return std::string("it takes a softcap of at least 2^-126"); };
  return prefill_refuses(target, g.forward);
}

// Which target serves a call: the best that this machine can run, or the one that HEED_TARGET names.

namespace {

std::string target_variable() {
  const char* const name = std::getenv("HEED_TARGET");
  return name ? name : "";
}

// Null where this build has none of that name.
const Target* target_named(const std::string& name) {
  for (const Target* target : targets())
    if (target->name == name) return target;
  return nullptr;
}

}  // namespace

std::string target_variable_fault() {
  const std::string name = target_variable();
  if (name.empty()) return "";
  if (const Target* const target = target_named(name)) {
    if (target->available()) return "";
    return "HEED_TARGET: this machine lacks " + std::string(target->requires_) + " for '" + name +
           "', and only the reference is left";
  }
  std::string known;
  for (const Target* target : targets()) known += (known.empty() ? "" : ", ") + std::string(target->name);
  constexpr std::size_t longest_quoted = 100;
  return "HEED_TARGET: '" + name.substr(0, longest_quoted) + "' is no target of this build, which has " +
         known + ", and is ignored";
}

std::string& forced_target() {
  static std::string& forced = *[] {  // never destroyed, as the backend
    if (const std::string fault = target_variable_fault(); !fault.empty()) threads::warn(fault);
    return new std::string(target_named(target_variable()) ? target_variable() : "");
  }();
  return forced;
}

Reason unavailable(const Target& target) { return target.available() ? not_named(target) : lacks(target); }

const Target& best_target() {
  for (const Target* target : targets())
    if (!target->only_bf16 && !unavailable(*target)) return *target;
  return *targets().back();
}

const Target* best_bf16_target() {
  for (const Target* target : targets())
    if (target->only_bf16 && !unavailable(*target)) return target;
  return nullptr;
}

}  // namespace heed::cpu
