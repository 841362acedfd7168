// SPDX-License-Identifier: Apache-2.0
// The docstrings of what heed.distributed is made of.
#pragma once

namespace heed::python {

constexpr const char* group_doc =
    "One rank's end of several that compute together; made by heed.distributed.group.";
constexpr const char* abort_doc = "Gives up: the others are told, and every call from now on is refused.";
constexpr const char* split_over_ranks_doc =
    "The shares of a call of (queries, keys, heads, kv_heads); see heed.distributed.Split.";
constexpr const char* attention_over_ranks_doc = "See heed.distributed.attention. qkv: (q, k, v).";
constexpr const char* attention_backward_over_ranks_doc =
    "See heed.distributed.attention_backward. arrays: (out_gradient, q, k, v, out, lse, lse_gradient, by).";
constexpr const char* layer_over_ranks_doc =
    "One rank's part of a layer; see heed.distributed.AttentionLayer. config has its keywords by name.";
constexpr const char* layer_over_ranks_call_doc = "See heed.distributed.AttentionLayer.";
constexpr const char* layer_share_doc =
    "(first_head, heads, first_kv_head, kv_heads, first_output, outputs) of this rank.";
constexpr const char* decode_over_ranks_doc = "See heed.distributed.decode.";
constexpr const char* append_own_doc = "See heed.distributed.append. place: (sequence, length).";

}  // namespace heed::python
