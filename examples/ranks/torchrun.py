# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of torch.distributed: torchrun --nproc-per-node 2 examples/ranks/torchrun.py"""

import torch
import torch.distributed

import heed
import heed.distributed

tokens, heads, kv_heads = 300, 4, 2
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)  # every rank draws the same; a program would load its part only
q = torch.randn(1, heads, tokens, 16)
k, v = torch.randn(2, 1, kv_heads, tokens, 16)

group = heed.distributed.group()
split = heed.distributed.split_grid(
    queries=tokens, keys=tokens, heads=heads, kv_heads=kv_heads, ranks=group.size, head_groups=2 if group.size % 2 == 0 else 1
)
mine = split.of_rank[group.rank]
out = heed.distributed.attention(group, split, mine.queries_of(q), mine.keys_of(k), mine.keys_of(v), causal=True)

whole = heed.attention(q, k, v, causal=True)
print(f"rank {group.rank} of {group.size}: the bits of one process: {torch.equal(out, mine.queries_of(whole))}")
torch.distributed.destroy_process_group()
