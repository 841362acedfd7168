// SPDX-License-Identifier: Apache-2.0
// The three naming schemes of checkpoints, name by name.
#pragma once
#include <string>
#include <vector>

#include "layer/weights.hpp"

namespace heed::layer {

inline const WeightNames paper_names{.matrices{"W_q.weight", "W_k.weight", "W_v.weight", "W_o.weight"},
                                     .biases{"W_q.bias", "W_k.bias", "W_v.bias", "W_o.bias"}};
inline const WeightNames llama_names{
    .matrices{"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"},
    .biases{"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}};
// torch.nn.MultiheadAttention with kdim or vdim. The biases of Q, K and V are always parts of packed_bias.
inline const WeightNames torch_names{
    .matrices{"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"},
    .biases{"in_proj_bias", "in_proj_bias", "in_proj_bias", "out_proj.bias"}};
// Q over K over V: what torch writes when the three inputs are equally wide.
inline constexpr const char* packed_matrix = "in_proj_weight";
// Phi-3: the heads of Q over those of K over those of V.
inline constexpr const char* packed_heads = "qkv_proj.weight";
inline constexpr const char* packed_bias = "in_proj_bias";

// The scheme of the names after `prefix`. Throws Error where there is none, or two, or a part that a layer
// does not have. Only names are looked at.
Naming naming_of(const Arrays&, const std::string& prefix);

// For whoever looked in the wrong place: after which prefixes a checkpoint has attention weights.

// A name out of a file, fit to print: short, and nothing a terminal would obey.
std::string shown_name(const std::string& name);

// `there are some after "model.layers.0.self_attn." and 31 more`; empty where there are none.
std::string attention_prefixes(const std::vector<std::string>& names);

}  // namespace heed::layer
