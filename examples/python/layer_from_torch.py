# SPDX-License-Identifier: Apache-2.0
"""A trained torch.nn.MultiheadAttention, loaded by its own names."""

import torch

import heed

torch.manual_seed(0)
module = torch.nn.MultiheadAttention(64, 8, batch_first=True).eval()
layer = heed.AttentionLayer(model_dim=64, heads=8, bias=True)
layer.load(module.state_dict())

x = torch.randn(2, 10, 64)
with torch.no_grad():
    theirs, their_weights = module(x, x, x)
ours, our_weights = layer(x, return_weights="average")
print("output agrees:", bool((ours - theirs).abs().max() < 1e-5))
print("weights agree:", bool((our_weights - their_weights).abs().max() < 1e-5))
