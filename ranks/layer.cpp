// SPDX-License-Identifier: Apache-2.0
// The layer over ranks: each attends with its own heads, these are gathered, each projects to its own
// outputs, and those are gathered.
#include <algorithm>
#include <cstring>

#include "heed/distributed_layer.hpp"
#include "heed/version.hpp"
#include "layer/attending.hpp"
#include "layer/config.hpp"
#include "layer/weight_rows.hpp"
#include "ranks/agreement.hpp"
#include "ranks/group_call.hpp"
#include "ranks/meaning.hpp"
#include "refusal/refusal.hpp"

namespace heed::ranks {
namespace {

layer::WeightRows weight_rows_of(const LayerConfig& c, const LayerShare& s) {
  return {{{s.first_head * *c.head_dim, s.heads * *c.head_dim},
           {s.first_kv_head * *c.head_dim, s.kv_heads * *c.head_dim},
           {s.first_kv_head * *c.value_head_dim, s.kv_heads * *c.value_head_dim},
           {s.first_output, s.outputs}}};
}

LayerConfig config_of(const LayerConfig& whole, const LayerShare& share) {
  LayerConfig c = whole;
  c.heads = share.heads, c.kv_heads = share.kv_heads;
  c.drop_probability = 0;
  return c;
}

const LayerWeights& checked(const LayerWeights& part, const LayerConfig& c, const LayerShare& share) {
  layer::check_rows(part, c, weight_rows_of(c, share));
  return part;
}

// Memory for one block of each rank, one after another.
struct Blocks {
  std::vector<std::byte> bytes{};
  std::vector<std::span<std::byte>> of_rank{};

  explicit Blocks(const std::vector<std::int64_t>& sizes) {
    std::int64_t all = 0;
    for (const std::int64_t size : sizes) all += size;
    bytes.resize(static_cast<std::size_t>(all));
    auto* at = bytes.data();
    for (const std::int64_t size : sizes) {
      of_rank.emplace_back(at, static_cast<std::size_t>(size));
      at += size;
    }
  }
};

}  // namespace

// The layer of this rank's heads; its output projection has the share's rows, over all heads.
struct RankLayer : layer::LayerState {
  RankLayer(const LayerConfig& completed, const LayerShare& own, const LayerWeights& part, int own_rank,
            int all_ranks)
      : LayerState(config_of(completed, own), checked(part, completed, own)),
        whole(completed),
        share(own),
        rank(own_rank),
        ranks(all_ranks) {}

  LayerConfig whole;
  LayerShare share;
  int rank, ranks;
};

namespace {

// One rank's part of a call.
class LayerCall {
 public:
  LayerCall(Group& group, const RankLayer& own, const AttentionLayer::Call& call, const Outputs& outputs,
            const Options& options)
      : group_(group), only_(group), layer_(own), out_(outputs.out) {
    Agreement agreement(Agreement::Of::layer);
    try {
      check(call, outputs);
      attending_.emplace(own, call, outputs, options);
    } catch (const std::exception& e) {
      agreement.refuse(e.what());
    }
    describe(agreement, call, options);
    agreement.settle(only_);
  }

  void run() {
    or_abort(group_, [this] {
      attending_->run();
      gather_heads();
      gather_outputs();
    });
    layer::fill_rows_after(layer_.backend, attending_->in.cached.counts, 0, out_);
    attending_->keep();
  }

 private:
  void check(const AttentionLayer::Call& call, const Outputs& outputs) const {
    if (group_.size() != layer_.ranks || group_.rank() != layer_.rank)
      throw refusal(Error::value, "group: rank ", std::int64_t{group_.rank()}, " of ",
                    std::int64_t{group_.size()}, ", and the layer is that of rank ",
                    std::int64_t{layer_.rank}, " of ", std::int64_t{layer_.ranks});
    if (outputs.weights || outputs.scores.into)
      throw refusal(Error::unsupported, outputs.weights ? "weights" : "scores.into",
                    ": asked for, but no rank has all heads");
    if (call.activations)
      throw refusal(Error::unsupported, "activations: given, but a layer over ranks has no gradients");
  }

  void describe(Agreement& a, const AttentionLayer::Call& call, const Options& options) const {
    const LayerConfig& c = layer_.whole;
    a.add("the size of the group", group_.size());
    a.add("config.model_dim", c.model_dim);
    a.add("config.heads", c.heads);
    a.add("config.kv_heads", *c.kv_heads);
    a.add("config.head_dim", *c.head_dim);
    a.add("config.value_head_dim", *c.value_head_dim);
    a.add("config.key_dim", *c.key_dim);
    a.add("config.value_dim", *c.value_dim);
    a.add("config.rotary, as a number, or 0,", number_of(c.rotary));
    a.add("positions, as a number,", number_of(call.positions));
    a.add("key_positions, as a number,", number_of(call.key_positions));
    a.add("counts, as a number,", number_of(call.counts));
    a.add("x.batch", call.x.shape.batch);
    a.add("x.length", call.x.shape.length);
    a.add("x.dtype", static_cast<std::int64_t>(call.x.dtype));
    a.add("out.dtype", static_cast<std::int64_t>(out_.dtype));
    a.add("the type of context, or 0,", type_or_0(call.context));
    a.add("the type of value, or 0,", type_or_0(call.value));
    describe(a, call.cache);
    a.add("the number of keys", attending_ ? attending_->in.keys : 0);
    a.add("the type of the heads", attending_ ? static_cast<std::int64_t>(attended().dtype) : 0);
    describe_options(a, options);
  }

  static std::int64_t type_or_0(const Optional<View>& x) {
    return x ? static_cast<std::int64_t>(x->dtype) + 1 : 0;
  }

  // What of a cache changes what heads see in it; its pages do not.
  static void describe(Agreement& a, const KvCache* cache) {
    static const KvCacheConfig none;
    const KvCacheConfig& config = cache ? cache->config() : none;
    a.add("the type of the cache, or 0,", cache ? static_cast<std::int64_t>(config.type) + 1 : 0);
    a.add("cache.window.length, or 0,", config.window ? config.window->length : 0);
    a.add("cache.window.front, or 0,", config.window ? config.window->front : 0);
    a.add("when the cache turns its keys, or 0,",
          config.rotary ? static_cast<std::int64_t>(config.rotary->when) + 1 : 0);
  }

  MutableView attended() const { return attending_->heads.attended.view; }
  std::int64_t tokens() const { return out_.shape.batch * out_.shape.length; }

  std::vector<std::int64_t> sizes(std::int64_t LayerShare::* count, std::int64_t bytes) const {
    std::vector<std::int64_t> all;
    for (int r = 0; r < layer_.ranks; ++r)
      all.push_back(share_of_layer(layer_.whole, r, layer_.ranks).*count * tokens() * bytes);
    return all;
  }

  // Blocks of tokens with some heads become rows with all of them.
  void gather_heads() {
    const MutableView own = attended();
    const std::int64_t dim = *layer_.whole.value_head_dim,
                       element = static_cast<std::int64_t>(bytes_of(own.dtype));
    const Shape shape{own.shape.batch, layer_.whole.heads, own.shape.length, dim};
    const std::vector<std::int64_t> of_rank = sizes(&LayerShare::heads, dim * element);
    Blocks blocks(of_rank);
    const auto mine = static_cast<std::size_t>(of_rank[static_cast<std::size_t>(layer_.rank)]);
    group_.gather("heads", {static_cast<const std::byte*>(own.data), mine}, blocks.of_rank).wait();
    merged_ = layer::make_floats(layer_.backend, "heads", shape, bshd(shape), own.dtype);
    const std::int64_t row = layer_.whole.heads * dim * element;
    auto* to = static_cast<std::byte*>(merged_.view.data);
    for (std::size_t r = 0; r < of_rank.size(); ++r) {
      const std::int64_t width = tokens() > 0 ? of_rank[r] / tokens() : 0;
      const std::byte* from = blocks.of_rank[r].data();
      for (std::int64_t t = 0; t < tokens(); ++t)
        std::memcpy(to + t * row, from + t * width, static_cast<std::size_t>(width));
      to += width;
    }
  }

  void gather_outputs() {
    const std::int64_t element = static_cast<std::int64_t>(bytes_of(out_.dtype));
    Blocks blocks(sizes(&LayerShare::outputs, element));
    const auto view_of = [&](int r) {
      const LayerShare share = share_of_layer(layer_.whole, r, layer_.ranks);
      const Shape shape{out_.shape.batch, 1, out_.shape.length, share.outputs};
      return MutableView(blocks.of_rank[static_cast<std::size_t>(r)].data(), shape, out_.dtype);
    };
    (*layer_.projections.out)(merged_.view, view_of(layer_.rank));
    group_.gather("outputs", blocks.of_rank[static_cast<std::size_t>(layer_.rank)], blocks.of_rank).wait();
    for (int r = 0; r < layer_.ranks; ++r) {
      const LayerShare share = share_of_layer(layer_.whole, r, layer_.ranks);
      MutableView columns = out_;
      columns.data = static_cast<std::byte*>(out_.data) + share.first_output * out_.stride.dim * element;
      columns.shape.dim = share.outputs;
      layer_.backend.copy(view_of(r), columns);
    }
  }

  Group& group_;
  const GroupCall only_;
  const RankLayer& layer_;
  const MutableView out_;
  std::optional<layer::Attending> attending_{};
  layer::Floats merged_{};  // what the output projection reads
};

}  // namespace
}  // namespace heed::ranks

namespace HEED_NAMESPACE {

struct LayerOverRanks::State : ranks::RankLayer {
  using RankLayer::RankLayer;
};

LayerWeights weights_of_share(const LayerWeights& whole, const LayerConfig& config, const LayerShare& share) {
  const LayerConfig c = layer::complete(config);
  return layer::take_rows(whole, c, ranks::weight_rows_of(c, share));
}

LayerWeights weights_of_share(const std::filesystem::path& path, const LayerConfig& config,
                              const LayerShare& share, const std::string& prefix) {
  const LayerConfig c = layer::complete(config);
  return layer::read_rows(path, prefix, c, ranks::weight_rows_of(c, share));
}

LayerOverRanks::LayerOverRanks(const LayerConfig& config, const LayerWeights& part, int rank, int ranks) {
  const LayerConfig completed = layer::complete(config);
  if (config.device != Device::cpu)
    throw refusal(Error::unsupported, "config.device: a layer over ranks computes on the CPU");
  const LayerShare share = share_of_layer(completed, rank, ranks);
  state_ = std::make_unique<State>(completed, share, part, rank, ranks);
}
LayerOverRanks::~LayerOverRanks() = default;
LayerOverRanks::LayerOverRanks(LayerOverRanks&&) noexcept = default;
LayerOverRanks& LayerOverRanks::operator=(LayerOverRanks&&) noexcept = default;

void LayerOverRanks::operator()(Group& group, const AttentionLayer::Call& call, const Outputs& outputs,
                                const Options& options) const {
  ranks::LayerCall(group, *state_, call, outputs, options).run();
}

const LayerConfig& LayerOverRanks::config() const { return state_->whole; }
const LayerShare& LayerOverRanks::share() const { return state_->share; }

}  // namespace HEED_NAMESPACE
