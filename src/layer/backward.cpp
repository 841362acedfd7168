// SPDX-License-Identifier: Apache-2.0
// AttentionLayer::backward(): the gradients of a call by everything it read (G10).
#include <array>
#include <limits>

#include "call/make_problem.hpp"
#include "heed/gradient.hpp"
#include "layer/backward_call.hpp"
#include "layer/config.hpp"
#include "layer/state.hpp"
#include "refusal/refusal.hpp"
#include "threads/pool.hpp"

namespace heed::layer {
namespace {

struct Of {
  const char* name;
  std::optional<View> argument;
};

void add_written(const char* name, const std::optional<MutableView>& gradient, const Of& of,
                 Arguments& arguments) {
  if (!gradient) return;
  if (!of.argument) throw refusal(Error::value, name, ": given, but ", of.name, " is not");
  check_argument({name, *gradient});
  if (gradient->shape != of.argument->shape)
    throw refusal(Error::shape, name, ".shape: ", gradient->shape, " is not ", of.name,
                  ".shape: ", of.argument->shape);
  arguments.add(name, *gradient, {.use = Rule::written});
}

void check_gradients(const LayerConfig& c, const AttentionLayer::Call& call, const LayerInputs& in,
                     const LayerGradients& g, const Options& options) {
  using enum Extent;
  Arguments arguments;
  arguments.add("gradients.out", g.out, {Rule::read, Rule::exactly, {batch, one, queries, model_dim}});
  arguments.add_given("gradients.log_sum_exp", g.log_sum_exp,
                      {Rule::read, Rule::exactly, {batch, heads, queries, one}});
  check_alone(arguments.all());
  check_extents(arguments.all(), extents_of(c, in));
  add_written("gradients.x", g.x, {"x", call.x}, arguments);
  add_written("gradients.context", g.context, {"context", call.context}, arguments);
  add_written("gradients.value", g.value, {"value", call.value}, arguments);
  add_written("gradients.bias", g.bias, {"options.bias", options.bias}, arguments);
  add_written("gradients.sink", g.sink, {"options.sink", options.sink}, arguments);
  check_devices(arguments.all(), "config.device", c.device);
  arguments.add("x", in.x);
  arguments.add("context", in.context);
  arguments.add("value", in.value);
  check_overlap(arguments.all());
}

void check_same(const char* name, const Floats& saved, const Shape& wanted) {
  if (saved.view.shape != wanted)
    throw refusal(Error::shape, "activations.", name, ": ", saved.view.shape,
                  " is not this call's: ", wanted);
}

}  // namespace

LayerInputs check_backward(const LayerConfig& c, const AttentionLayer::Call& call, const LayerGradients& g,
                           const Options& options) {
  if (call.cache)
    throw refusal(Error::unsupported, "cache: given, but there is no gradient by what a cache holds");
  LayerInputs in = check_read(c, call, options);
  check_gradients(c, call, in, g, options);
  place_tokens(c, call, options, in);
  return in;
}

void check_heads(const LayerConfig& c, const LayerInputs& in, const Heads& saved) {
  const std::int64_t batch = in.x.shape.batch, queries = in.x.shape.length, keys = in.keys;
  check_same("q", saved.q, {batch, c.heads, queries, *c.head_dim});
  check_same("k", saved.k, {batch, *c.kv_heads, keys, *c.head_dim});
  check_same("v", saved.v, {batch, *c.kv_heads, keys, *c.value_head_dim});
  check_same("attended", saved.attended, {batch, c.heads, queries, *c.value_head_dim});
}

}  // namespace heed::layer

// AttentionLayer::backward(): the gradients of a call by everything it read (G10).

namespace HEED_NAMESPACE {
using namespace layer;

namespace {

// One of x, context and value, and the gradients by those of Q, K and V that were projected from it: side by
// side in each token's row, so that one product with the stacked matrices is the gradient by it.
struct Source {
  View input;
  std::optional<MutableView> gradient;
  unsigned projected = 0;
  std::int64_t width = 0;
  Floats heads{};

  bool is_wanted(const LayerGradients& g) const { return gradient || !g.skip_parameters; }
};

// The gradient by Q, K or V: its part of each row of a source.
struct Part {
  Source* source;
  Shape shape;
  std::int64_t first;  // of the row

  MutableView view() const {
    const std::int64_t row = source->width;
    void* const begin = static_cast<float*>(source->heads.view.data) + first;
    return {begin, shape, Strides{shape.length * row, shape.dim, row, 1}, DType::f32,
            source->heads.view.device};
  }
};

class HeadGradients {
 public:
  HeadGradients(const Backend& backend, const AttentionLayer::Call& call, const LayerInputs& in,
                const LayerGradients& g, const Heads& heads)
      : sources_{Source{in.x, g.x}, Source{in.context, g.context}, Source{in.value, g.value}} {
    const std::size_t of_keys = call.context ? 1 : 0, of_values = call.value ? 2 : of_keys;
    parts_ = {put(0, of_q, heads.q.view.shape), put(of_keys, of_k, heads.k.view.shape),
              put(of_values, of_v, heads.v.view.shape)};
    for (Source& s : sources_)
      if (s.projected) {
        const Shape shape{s.input.shape.batch, 1, s.input.shape.length, s.width};
        s.heads = make_floats(backend, "gradients of the heads", shape, bshd(shape));
        if (g.accumulate) backend.fill(s.heads.view, 0);  // as the bias and the sink are added to
      }
  }
  HeadGradients(const HeadGradients&) = delete;
  HeadGradients& operator=(const HeadGradients&) = delete;

  MutableView q() const { return parts_[0].view(); }
  MutableView k() const { return parts_[1].view(); }
  MutableView v() const { return parts_[2].view(); }
  const std::array<Source, 3>& sources() const { return sources_; }

  // As attention_backward() takes them: those that something is made of.
  Gradients for_attention(const LayerGradients& g, const View& out) const {
    const auto wanted = [&](std::size_t i) {
      return parts_[i].source->is_wanted(g) ? Optional<MutableView>(parts_[i].view()) : std::nullopt;
    };
    return {.out = out,
            .log_sum_exp = g.log_sum_exp,
            .q = wanted(0),
            .k = wanted(1),
            .v = wanted(2),
            .bias = g.bias,
            .sink = g.sink,
            .accumulate = g.accumulate};
  }

 private:
  Part put(std::size_t source, unsigned projected, const Shape& shape) {
    Source& s = sources_[source];
    const std::int64_t first = s.width;
    s.projected |= projected;
    s.width += shape.heads * shape.dim;
    return {&s, shape, first};
  }

  std::array<Source, 3> sources_;
  std::array<Part, 3> parts_{};
};

// The rotation is undone by that to minus the position, and an attention factor
// stays.
std::vector<std::int64_t> backwards(std::span<const std::int64_t> positions) {
  constexpr auto limits = std::numeric_limits<std::int64_t>();
  std::vector<std::int64_t> rotated;
  // fault: turned-on-instead-of-back
  for (const std::int64_t p : positions) rotated.push_back(p == limits.min() ? limits.max() : -p);
  return rotated;
}

void rotate_back(const LayerState& state, const LayerInputs& in, const HeadGradients& d) {
  const std::vector<std::int64_t> of_queries = backwards(in.positions), of_keys = backwards(in.key_positions);
  const Rotated q{d.q(), of_queries}, k{d.k(), of_keys};
  state.rotate(q, k, in.lengths);
}

void write_inputs(LayerState& state, const HeadGradients& d, bool accumulates) {
  for (const Source& s : d.sources()) {
    if (!s.gradient || !s.projected) continue;
    const Projection& back = state.back(s.projected);
    if (!accumulates) {
      back(s.heads.view, *s.gradient);
      continue;
    }
    const Floats gained = make_floats(state.backend, "gradients", s.input.shape, bhsd(s.input.shape));
    back(s.heads.view, gained.view);
    state.backend.add(gained.view, *s.gradient);
  }
}

// That what a call kept is of this call.
void check_activations(const LayerState& state, const LayerInputs& in, const Options& options,
                       const auto& saved) {
  check_heads(state.config, in, saved.heads);
  if (saved.packed != state.packed)
    throw refusal(Error::value, "activations: made by another layer, or before update() changed the weights");
  RecordedCall(in, options).check_same(saved.recorded);
}

}  // namespace

void AttentionLayer::backward(const Call& call, const LayerGradients& g, const Options& given) {
  LayerState& state = *state_;
  const Backend& backend = state.backend;
  if (call.weights) throw refusal(Error::unsupported, "weights: backward() reads the layer's own");
  require_weights(state);
  const LayerInputs in = check_backward(state.config, call, g, given);
  const std::shared_ptr<const void> device = backend.stay_with("x", call.x);
  FloatOptions floats(backend, given);
  Options& options = floats.options;
  state.complete_options(call, options);

  const bool is_kept = call.activations && call.activations->state_;
  Heads again;
  if (is_kept) check_activations(state, in, options, *call.activations->state_);
  if (!is_kept)
    again = make_heads(state.config, backend, in, LayerState::head_type(state.projections, call, in));
  if (!is_kept) again.log_sum_exp = make_log_sum_exp(state.config, backend, in);
  const Heads& heads = is_kept ? call.activations->state_->heads : again;
  const Inputs inputs{heads.q.view, heads.k.view, heads.v.view};
  const Saved saved{heads.attended.view, heads.log_sum_exp.view};

  const Shape merged = heads.attended.view.shape;
  // In 16 bits where all that came before it is, as the forward pass hands on its heads.
  const DType of_heads = heads.attended.view.dtype,
              handed_on = g.out.dtype == of_heads ? of_heads : DType::f32;
  const Floats d_attended = make_floats(backend, "gradients of the heads", merged, bshd(merged), handed_on);
  const HeadGradients d(backend, call, in, g, heads);
  const Gradients by_heads = d.for_attention(g, d_attended.view);
  make_gradient_problem(inputs, saved, by_heads, options);  // refusals come before anything is paid for
  const auto* const gained = g.skip_parameters ? nullptr : &state.gradient_sums();

  const threads::ForOneCall for_call(options.threads, options.executor);
  if (!is_kept) {
    Options forward = options;
    forward.kernel.clear();
    state.project(state.projections, in, heads);
    attention(inputs, {.out = heads.attended.view, .log_sum_exp = heads.log_sum_exp.view}, forward);
  }
  state.back(of_out)(g.out, d_attended.view);
  attention_backward(inputs, saved, by_heads, options);
  rotate_back(state, in, d);
  write_inputs(state, d, g.accumulate);
  if (!gained) return;
  const auto add = [&](std::size_t n, const View& x, const View& y) {
    backend.add_weight_gradient(x, y, (*gained)[n].view, (*gained)[4 + n].view);
  };
  add(0, in.x, d.q());
  add(1, in.context, d.k());
  add(2, in.value, d.v());
  add(3, heads.attended.view, g.out);
}

}  // namespace HEED_NAMESPACE
