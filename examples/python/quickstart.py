# SPDX-License-Identifier: Apache-2.0
"""Three tokens, two dimensions: the README's first program, from Python."""

import numpy as np

import heed

q = np.array([[4, 0], [0, 4], [4, 4]], np.float32)
k = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
v = np.array([[10], [20], [30]], np.float32)

out, weights = heed.attention(q, k, v, causal=True, return_weights=True)
for answer, row in zip(out[:, 0], weights):
    print(f"{answer:.3f}  {row.round(3)}")
