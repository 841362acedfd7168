# SPDX-License-Identifier: Apache-2.0
"""A prefix that many prompts share is attended to once, and merged with each prompt's own keys."""

import numpy as np

import heed

random = np.random.default_rng(0)
q = random.standard_normal((3, 4, 6, 32), dtype=np.float32)  # three prompts
own_k, own_v = (random.standard_normal((3, 4, 20, 32), dtype=np.float32) for _ in range(2))
prefix_k, prefix_v = (random.standard_normal((1, 4, 100, 32), dtype=np.float32) for _ in range(2))

shared = [np.broadcast_to(array, (3, 4, 100, 32)) for array in (prefix_k, prefix_v)]  # no copy
parts = heed.attention(q, *shared, return_lse=True), heed.attention(q, own_k, own_v, return_lse=True)
out, lse = heed.merge(*parts)

whole = heed.attention(q, np.concatenate([shared[0], own_k], 2), np.concatenate([shared[1], own_v], 2))
print("merged equals whole:", bool(np.abs(out - whole).max() < 1e-6))
