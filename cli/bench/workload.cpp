// SPDX-License-Identifier: Apache-2.0
// See workload.hpp.
#include "bench/workload.hpp"

#include <optional>
#include <vector>

#include "bench/workload_backward.hpp"
#include "bench/workload_cached.hpp"
#include "kernel_choice.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"

namespace heed::tool {
namespace {

// True but for one in eight, in no order that a kernel could make use of.
std::unique_ptr<bool[]> scattered(const Shape& shape) {
  const std::vector<float> random =
      random_buffer(shape, DType::f32, {.stream = Stream::mask}).to_floats();  // in [-1, 1)
  auto made = std::make_unique<bool[]>(random.size());
  for (std::size_t n = 0; n < random.size(); ++n) made[n] = random[n] >= -0.75f;
  return made;
}

class AttentionWorkload : public Workload {
 public:
  explicit AttentionWorkload(const Case& c)
      : q_(random_buffer({c.batch, c.heads, c.queries, c.dim}, c.dtype, {.stream = Stream::q})),
        k_(random_buffer({c.batch, c.kv_heads, c.keys, c.dim}, c.dtype, {.stream = Stream::k})),
        v_(random_buffer(k_.shape(), c.dtype, {.stream = Stream::v})),
        out_(q_.shape(), c.dtype) {
    const Shape pairs{1, 1, c.queries, c.keys};
    if (c.between == Between::causal) options_.masks = {Causal{}};
    if (c.between == Between::bias)
      options_.bias = bias_.emplace(random_buffer(pairs, c.dtype, {.stream = Stream::bias})).view();
    if (c.between == Between::keep) {
      keep_ = scattered(pairs);
      options_.masks = {Keep{{keep_.get(), pairs}}};
    }
  }

  void run() override { attention(inputs(), {.out = out_.writable()}, options_); }
  std::string kernel() override { return taken_kernel(plan(inputs(), {.out = out_.writable()}, options_)); }
  Buffer& result() override { return out_; }
  Findings verify() const override { return verify_attention(inputs(), out_.view(), options_); }

 private:
  Inputs inputs() const { return {.q = q_.view(), .k = k_.view(), .v = v_.view()}; }

  Buffer q_, k_, v_, out_;
  std::optional<Buffer> bias_{};
  std::unique_ptr<bool[]> keep_{};
  Options options_{};
};

LayerWeights rounded_to(LayerWeights weights, DType dtype) {
  const Element element = dtype == DType::bf16  ? Element::bf16
                          : dtype == DType::f16 ? Element::f16
                                                : Element::f32;
  for (Array* matrix : {&weights.w_q, &weights.w_k, &weights.w_v, &weights.w_o})
    *matrix = Array::from_floats(matrix->shape, matrix->to_floats(), element);
  return weights;
}

class LayerWorkload : public Workload {
 public:
  explicit LayerWorkload(const Case& c)
      : case_(c),
        weights_(rounded_to(random_weights(c.layer_config(), 0), c.dtype)),
        layer_(c.layer_config(), weights_),
        x_(random_buffer({c.batch, 1, c.queries, c.model_dim()}, c.dtype, {.stream = Stream::x})),
        y_(x_.shape(), c.dtype) {}

  void run() override { layer_({.x = x_.view()}, {.out = y_.writable()}); }
  std::string kernel() override {
    const Extents extents{case_.batch, case_.queries,  case_.keys, case_.model_dim(),
                          case_.heads, case_.kv_heads, case_.dim};
    return chosen_kernel({.dtype = case_.dtype}, extents, {});
  }
  Buffer& result() override { return y_; }
  Findings verify() const override {
    return verify_layer({.config = layer_.config(), .weights = weights_, .x = x_, .y = y_});
  }

 private:
  Case case_;
  LayerWeights weights_;
  AttentionLayer layer_;
  Buffer x_, y_;
};

// The public API has projections only inside a layer. With few keys per query a run is four projections and a
// little attention between them.
class ProjectionWorkload : public LayerWorkload {
 public:
  explicit ProjectionWorkload(const Case& c) : LayerWorkload(c), between_(c) {}
  std::int64_t repeats() const override { return projections_per_run; }
  double seconds_besides() override {
    return seconds_of([&] { between_.run(); });
  }
  std::string kernel() override { return ""; }

 private:
  AttentionWorkload between_;
};

}  // namespace

std::unique_ptr<Workload> make_workload(const Case& c) {
  if (c.is_cached()) return make_cached_workload(c);
  if (c.role == Role::backward) return make_backward_workload(c);
  if (c.role == Role::layer) return std::make_unique<LayerWorkload>(c);
  if (c.role == Role::projection) return std::make_unique<ProjectionWorkload>(c);
  return std::make_unique<AttentionWorkload>(c);
}

}  // namespace heed::tool
