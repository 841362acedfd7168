// SPDX-License-Identifier: Apache-2.0
// The attention layer over the ranks of a group: each has some heads of the projections to Q, K and V and
// some rows of that to the output. No sum crosses ranks, what they compute is gathered: the results have the
// bits of one process.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "heed/export.hpp"
#include "heed/group.hpp"
#include "heed/layer.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// What one rank has of a layer: query heads [first_head, first_head + heads), the KV heads that they read,
// and numbers [first_output, first_output + outputs) of each row of the output.
struct LayerShare {
  std::int64_t first_head = 0, heads = 0;
  std::int64_t first_kv_head = 0, kv_heads = 0;
  std::int64_t first_output = 0, outputs = 0;
};

// Whole KV heads where there are as many as ranks, else several ranks share one. A layer of the tiled head
// map is refused, and so are more ranks than heads, or than outputs.
HEED_API LayerShare share_of_layer(const LayerConfig&, int rank, int ranks);

// The rows of a layer's weights that are a share's own.
HEED_API LayerWeights weights_of_share(const LayerWeights& whole, const LayerConfig&, const LayerShare&);
// The same out of a safetensors file with the whole layer, of which only those rows are read.
HEED_API LayerWeights weights_of_share(const std::filesystem::path&, const LayerConfig&, const LayerShare&,
                                       const std::string& prefix = "");

class HEED_API LayerOverRanks {
 public:
  // The configuration of the whole layer, and this rank's part of its weights.
  LayerOverRanks(const LayerConfig&, const LayerWeights& part, int rank, int ranks);
  ~LayerOverRanks();
  LayerOverRanks(LayerOverRanks&&) noexcept;
  LayerOverRanks& operator=(LayerOverRanks&&) noexcept;

  // Called by all ranks with the same x, context, value and positions, and with the same options but for what
  // has heads: those have the share's, and so do a log-sum-exp and the cache, whose kv_heads are the share's.
  // Every rank has all of `out`. Weights, scores and activations are refused; there is no dropout.
  //
  // What differs between ranks, or is refused by one, is refused by all, by Error::rank, before anything is
  // written. A fault on the way leaves the cache as it was.
  void operator()(Group&, const AttentionLayer::Call&, const Outputs&, const Options& = {}) const;

  const LayerConfig& config() const;  // of the whole layer, with every default filled in
  const LayerShare& share() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace HEED_NAMESPACE
