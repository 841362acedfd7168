// SPDX-License-Identifier: Apache-2.0
// The attention layer: projections, head split and merge around attention() (S16).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "heed/export.hpp"
#include "heed/files.hpp"
#include "heed/rotary.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

struct LayerConfig {
  std::int64_t model_dim = 0, heads = 0;
  std::optional<std::int64_t> kv_heads{};        // default: heads
  std::optional<std::int64_t> head_dim{};        // default: model_dim / heads
  std::optional<std::int64_t> value_head_dim{};  // default: head_dim
  std::optional<std::int64_t> key_dim{};         // width of the key input (kdim); default: model_dim
  std::optional<std::int64_t> value_dim{};       // width of the value input (vdim); default: key_dim
  float drop_probability = 0;                    // of the attention weights, in training only
  std::optional<Rotary> rotary{};
  HeadMap head_map = HeadMap::interleaved;
  Device device = Device::cpu;  // where it computes, and every view of its calls lies
};

// The names the papers use. Each is only a number of KV heads.
HEED_API LayerConfig multi_head(std::int64_t model_dim, std::int64_t heads);
HEED_API LayerConfig multi_query(std::int64_t model_dim, std::int64_t heads);
HEED_API LayerConfig grouped_query(std::int64_t model_dim, std::int64_t heads, std::int64_t kv_heads);

// Each matrix is (out, in), row-major: y = x * W^T + b.
struct LayerWeights {
  Array w_q;  // (heads * head_dim, model_dim)
  Array w_k;  // (kv_heads * head_dim, key_dim)
  Array w_v;  // (kv_heads * value_head_dim, value_dim)
  Array w_o;  // (model_dim, heads * value_head_dim)
  std::optional<Array> b_q{}, b_k{}, b_v{}, b_o{};
};

// Weights where they lie, for one call: each matrix (1, 1, out, in) of any strides, each bias (1, 1, 1, out).
struct LayerViews {
  View w_q, w_k, w_v, w_o;
  Optional<View> b_q{}, b_k{}, b_v{}, b_o{};
};

// How a checkpoint names them: W_q.weight ... as the paper does; in_proj_weight, out_proj.weight ...;
// q_proj.weight ...
enum class Naming : std::uint8_t { paper, torch, llama };

// Finds the scheme by the names after `prefix` ("model.layers.0.self_attn."); names outside it are left
// alone.
HEED_API LayerWeights layer_weights(const Arrays&, const std::string& prefix = "");
// torch's scheme packs Q, K and V into one matrix when their widths are equal, as torch does; it knows no
// grouped heads.
HEED_API Arrays to_arrays(const LayerWeights&, Naming);
// Uniform in +-1/sqrt(fan-in), from a counter-based generator: the same on every machine. Biases are left
// out.
HEED_API LayerWeights random_weights(const LayerConfig&, std::uint64_t seed);

// Makes a checkpoint of `to` KV heads out of one of `from`, by averaging the K and V heads of each group.
HEED_API LayerWeights pool_kv_heads(LayerWeights, std::int64_t from, std::int64_t to);
// Reorders the query heads of a tiled checkpoint so that the interleaved map reads the same KV heads (S8).
HEED_API LayerWeights interleave_heads(LayerWeights, std::int64_t heads, std::int64_t kv_heads);

// A weight matrix, (1, 1, out, in), or a bias, (1, 1, 1, out), by the name LayerWeights has for it. It lies
// in the CPU's memory, row after row.
struct Parameter {
  std::string name;
  MutableView values;
};

// The gradients of a loss by what one call of a layer wrote and read (G10).
struct LayerGradients {
  // Read: by outputs.out, (batch, 1, queries, model_dim), and by outputs.log_sum_exp; not given: 0.
  View out;
  Optional<View> log_sum_exp{};

  // Written, where given, in the extents of what they are gradients of: x, context and value of the call in
  // any dtype, the options' bias and sink in f32. What the call left out counts with what stood for it.
  Optional<MutableView> x{}, context{}, value{}, bias{}, sink{};

  bool accumulate = false;       // add to what is there instead
  bool skip_parameters = false;  // a frozen layer: gradients() stay as they are
};

class HEED_API AttentionLayer {
 public:
  enum class Mode : std::uint8_t { eval, train };

  // What a call made on the way, for backward() to read: Q, K and V as heads, what attention made of them,
  // and its log-sum-exp. The caller owns it. It knows what the call was told, and backward() refuses it where
  // that is told something else; of a bias, a sink and boolean masks it knows the extents only.
  class HEED_API Activations {
   public:
    Activations();
    ~Activations();
    Activations(Activations&&) noexcept;
    Activations& operator=(Activations&&) noexcept;

   private:
    friend class AttentionLayer;
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Call {
    View x;                    // (batch, 1, queries, model_dim)
    Optional<View> context{};  // (batch, 1, keys, key_dim); default: x
    Optional<View> value{};    // (batch, 1, keys, value_dim); default: context
    // In place of context and value: the tokens of x are appended to sequence b of the cache, or to
    // sequences[b], and attend to all that it then holds. A causal mask needs no alignment.
    KvCache* cache = nullptr;
    std::span<const std::int64_t> sequences{};
    // With a cache: how many tokens of x each batch entry has; default: all. What comes after them is
    // padding, which is not appended. KeyLengths are refused here: they would hide it now and keep it.
    std::span<const std::int64_t> counts{};
    // Of the queries, for rotary; default: 0, 1, 2, ..., or on from the length of the cached sequence.
    std::span<const std::int64_t> positions{};
    // Of the keys; default: positions where x is the context, else 0, 1, 2, ...
    std::span<const std::int64_t> key_positions{};
    std::uint64_t dropout_seed = 0;  // used in Mode::train
    // Read at this call in place of the layer's own, and packed as they are read: nothing of them is kept.
    // The results have the bits of a layer that was made of them. On the CPU only, and not by backward().
    const LayerViews* weights = nullptr;
    // Filled by a call without a cache, and read by backward(), which computes them again where there are
    // none.
    Activations* activations = nullptr;
  };

  AttentionLayer(const LayerConfig&, const LayerWeights&);
  // With no weights of its own: every call lends it some.
  explicit AttentionLayer(const LayerConfig&);
  ~AttentionLayer();
  AttentionLayer(AttentionLayer&&) noexcept;
  AttentionLayer& operator=(AttentionLayer&&) noexcept;

  // outputs.out is (batch, 1, queries, model_dim); outputs.weights has `heads` heads, or 1 for their average.
  // options.dropout is refused: the layer owns it.
  //
  // Over a cache, `keys` are those of the longest sequence after the call, and the call is all or nothing:
  // what it throws leaves every sequence as it was. (Where memory ran out, a page was missing or an executor
  // threw, pages that a window no longer shows may be gone all the same, and pages shared with a fork may be
  // its own by now.)
  // Rows of padding (counts) are 0 in out, weights and scores, and -inf in log_sum_exp and biased scores. No
  // other call changes the cache from the append to the end of this one. Others may read it: a call that
  // fails waits for them before it takes its tokens back.
  void operator()(const Call&, const Outputs&, const Options& = {}) const;
  template <OneMask M>
  void operator()(const Call&, const Outputs&, const M&) const = delete;  // a mask is an option: .masks

  // For the call that it is given, with the same options, mode and weights: writes what `gradients` asks for
  // and adds to gradients(). A kernel that options.kernel names is one for gradients. The order of every sum
  // is fixed, so that threads change no bit. Throws Error before anything is written. There is no gradient by
  // a cache.
  void backward(const Call&, const LayerGradients& gradients, const Options& = {});

  // The weights where they lie, w_q, w_k, w_v, w_o and then the biases there are, for an optimiser to change;
  // update() makes the copies anew that calls read. Weights of f64 are refused.
  std::vector<Parameter> parameters();
  void update();
  // What backward() has added up since zero_gradients(): the same names, in f32. A layer on another device
  // adds up there; this waits for it and brings a copy, so that what is changed here is not changed there.
  std::vector<Parameter> gradients();
  void zero_gradients();

  void set_mode(Mode);
  Mode mode() const;
  const LayerConfig& config() const;  // with every default filled in
  LayerWeights weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace HEED_NAMESPACE
