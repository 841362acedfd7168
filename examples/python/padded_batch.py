# SPDX-License-Identifier: Apache-2.0
"""Two sentences of different lengths: padding by lengths, by a mask, and together with causal."""

import numpy as np

import heed

tokens = np.array([[5, 8, 2, 9], [7, 3, 0, 0]])  # 0 pads
random = np.random.default_rng(0)
q, k, v = (random.standard_normal((2, 4, 4, 16), dtype=np.float32) for _ in range(3))
k[1, :, 2:] = np.nan  # what is hidden is never read

by_lengths = heed.attention(q, k, v, causal=True, key_lengths=heed.key_lengths(tokens))
hidden = heed.combine(heed.padding_mask(tokens), heed.look_ahead_mask(4))
by_mask = heed.attention(q, k, v, hide=hidden)
print("lengths", heed.key_lengths(tokens).tolist())
print("the same bits:", np.array_equal(by_lengths, by_mask), "| finite:", bool(np.isfinite(by_mask).all()))
