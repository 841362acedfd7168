// SPDX-License-Identifier: Apache-2.0
// What a page keeps of one layer: while its rows come in, and packed once they are all there.
#pragma once
#include <string>
#include <vector>

#include "heed/view.hpp"
#include "view/largest.hpp"
#include "view/pyramid.hpp"
#include "view/statistics.hpp"

namespace HEED_NAMESPACE::view {

// Compressed bytes of a page; JSON names them by their place.
using Blobs = std::vector<std::string>;

class LayerRecord {
 public:
  // `bytes` is what the layer may take of a page, compressed.
  LayerRecord(const Run&, const Layer&, std::int64_t bytes);

  void add_rows(const Rows&);
  bool is_whole() const { return rows_ == run_queries_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t queries() const { return run_queries_; }
  // Moves everything into `blobs` and returns what says where: JSON.
  std::string pack(Blobs& blobs);

 private:
  struct Head {
    StatisticsRecord statistics;
    LargestWeights largest;
    Pyramid pyramid;
    std::vector<float> exact{};
  };
  struct Packed;
  std::vector<std::string> pack_levels(Blobs&, std::int64_t bytes_left);

  Layer layer_;
  std::int64_t run_queries_, run_keys_, bytes_, rows_ = 0;
  bool is_exact_;
  std::vector<Head> heads_{};
};

}  // namespace HEED_NAMESPACE::view
