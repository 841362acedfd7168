// SPDX-License-Identifier: Apache-2.0
// A call of the layer up to its output projection: checked, projected to heads, rotated, attended to.
#pragma once
#include <memory>
#include <optional>

#include "layer/call.hpp"
#include "layer/state.hpp"
#include "problem/problem.hpp"
#include "threads/pool.hpp"

namespace heed::layer {

// An array of scores the caller asked for: written by attention() where it can be, else by way of a buffer.
// The buffer spans the whole batch, because dropout counts batch entries (S7).
class ScoreOutput {
 public:
  ScoreOutput(const Backend& backend, const char* name, const std::optional<MutableView>& wanted,
              std::int64_t heads)
      : backend_(backend), wanted_(wanted) {
    if (!wanted || (wanted->dtype == DType::f32 && wanted->shape.heads == heads)) return;
    Shape per_head = wanted->shape;
    per_head.heads = heads;
    buffer_ = make_floats(backend, name, per_head, bhsd(per_head));
    is_buffered_ = true;
  }
  std::optional<MutableView> target() const { return is_buffered_ ? buffer_.view : wanted_; }
  void deliver() const {
    if (!is_buffered_) return;
    if (wanted_->shape.heads == buffer_.view.shape.heads)
      backend_.copy(buffer_.view, *wanted_);
    else
      backend_.average_heads(buffer_.view, *wanted_);
  }

 private:
  const Backend& backend_;
  std::optional<MutableView> wanted_;
  Floats buffer_{};
  bool is_buffered_ = false;
};

class Attending {
 public:
  // Refusals come before the projections are paid for, and before the cache changes.
  Attending(const LayerState&, const AttentionLayer::Call&, const Outputs&, const Options&);

  // Fills `heads`, appends to the cache, and writes all outputs but out.
  void run();
  RecordedCall recorded() const { return {in, floats_.options}; }
  // The cache keeps what was appended; without this it is as it was.
  void keep() {
    if (appended_) appended_->keep();
  }
  // The call's own, or the layer's.
  const Projections& projections() const { return lent_ ? *lent_ : state_.projections; }

  LayerInputs in;

 private:
  std::shared_ptr<const void> device_;  // that of x is the current one for all that follows
  const LayerState& state_;
  const AttentionLayer::Call& call_;
  std::optional<Projections> lent_{};
  FloatOptions floats_;

 public:
  Heads heads;  // `attended` is what the output projection reads

 private:
  ScoreOutput weights_, scores_;
  Outputs results_;
  // The problem lets go of the cache before its tokens could be taken back.
  std::optional<AppendedTokens> appended_{};
  Problem problem_;
  threads::ForOneCall said_;
  const Kernel& kernel_;
};

}  // namespace heed::layer
