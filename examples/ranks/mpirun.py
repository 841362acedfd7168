# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of MPI: mpirun -np 2 python examples/ranks/mpirun.py"""

import numpy as np
from mpi4py import MPI

import heed
import heed.distributed

tokens, heads, kv_heads = 300, 4, 2
random = np.random.default_rng(0)  # every rank draws the same; a program would load its part only
q = random.standard_normal((1, heads, tokens, 16), dtype=np.float32)
k, v = (random.standard_normal((1, kv_heads, tokens, 16), dtype=np.float32) for _ in range(2))

group = heed.distributed.group(MPI.COMM_WORLD)
split = heed.distributed.split_sequence(queries=tokens, keys=tokens, heads=heads, kv_heads=kv_heads, ranks=group.size)
mine = split.of_rank[group.rank]
out = heed.distributed.attention(group, split, mine.queries_of(q), mine.keys_of(k), mine.keys_of(v), causal=True)

whole = heed.attention(q, k, v, causal=True)
print(f"rank {group.rank} of {group.size}: the bits of one process: {np.array_equal(out, mine.queries_of(whole))}")
