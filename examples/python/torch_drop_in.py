# SPDX-License-Identifier: Apache-2.0
"""The same call with torch and with heed: grouped heads, a mask, and a sentence that sees nothing."""

import torch
import torch.nn.functional as F

import heed

torch.manual_seed(0)
q = torch.randn(2, 8, 5, 64)
k, v = torch.randn(2, 2, 7, 64), torch.randn(2, 2, 7, 64)  # two KV heads for eight query heads
mask = torch.rand(2, 1, 5, 7) < 0.7  # True attends

theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
ours = heed.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
print(type(ours).__name__, tuple(ours.shape), "differs by less than 1e-5:", bool((ours - theirs).abs().max() < 1e-5))
