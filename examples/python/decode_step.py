# SPDX-License-Identifier: Apache-2.0
"""One new token against a buffer of keys: a view of it is read in place, and the result has the bits of prefill."""

import numpy as np

import heed

random = np.random.default_rng(0)
length, heads, kv_heads, dim = 200, 8, 2, 64
keys, values = (random.standard_normal((1, kv_heads, 4096, dim), dtype=np.float32) for _ in range(2))
queries = random.standard_normal((1, heads, length, dim), dtype=np.float32)

seen = np.s_[:, :, :length]
prefill = heed.attention(queries, keys[seen], values[seen], causal=True, window=(127, 0))
out = np.empty((1, heads, 1, dim), np.float32)
heed.attention(queries[:, :, -1:], keys[seen], values[seen], causal="ends", window=(127, 0), out=out)
print("the last row of prefill, bit for bit:", np.array_equal(out, prefill[:, :, -1:]))
