# SPDX-License-Identifier: Apache-2.0
"""A layer that learns to copy the token before: heed.torch under PyTorch's autograd and optimiser."""

import torch

import heed
import heed.torch

torch.manual_seed(0)
layer = heed.torch.AttentionLayer(model_dim=16, heads=2, bias=True, rotary=heed.Rotary(base=100.0))
optimiser = torch.optim.AdamW(layer.parameters(), lr=2e-2)
first = last = 0.0
for step in range(100):
    x = torch.randn(16, 8, 16)
    loss = (layer(x, causal=True)[:, 1:] - x[:, :-1]).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    first, last = first or loss.item(), loss.item()
print("it learns:", last < first / 3)
