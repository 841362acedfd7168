# SPDX-License-Identifier: Apache-2.0
"""Two requests with one prompt: it is computed once, forked, and each goes on by itself, token by token."""

import numpy as np

import heed

random = np.random.default_rng(0)
model_dim, heads, kv_heads, prompt, new = 256, 8, 2, 100, 20
layer = heed.AttentionLayer(model_dim, heads, kv_heads, rotary=heed.Rotary())
x = random.standard_normal((2, prompt + new, model_dim), dtype=np.float32)
x[1, :prompt] = x[0, :prompt]

cache = heed.KvCache(batch=1, kv_heads=kv_heads, capacity=4096, dim=layer.head_dim, page_size=64)
layer(x[:1, :prompt], cache=cache, causal=True)
cache.fork(0)
print(f"two sequences of {prompt} tokens in {cache.pages_in_use} pages, {cache.bytes_per_token} bytes per token")

outputs = [layer(x[:, n : n + 1], cache=cache, causal=True) for n in range(prompt, prompt + new)]
whole = layer(x, causal=True)
print("as if computed at once, bit for bit:", np.array_equal(np.concatenate(outputs, 1), whole[:, prompt:]))

cache.truncate(1, prompt + 5)  # the second request rejects what came after its fifth token
print("lengths", cache.lengths)
