# SPDX-License-Identifier: Apache-2.0
"""heed under jax.jit and jax.grad: XLA calls heed's attention and its backward pass by itself."""

import jax
import jax.numpy as jnp

import heed.jax


def plain(q, k, v):
    """The same in JAX's own operations."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v


q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 4, 16, 8))
loss = jax.jit(jax.value_and_grad(lambda *qkv: jnp.sum(heed.jax.attention(*qkv, causal=True) ** 2), argnums=(0, 1, 2)))
value, gradients = loss(q, k, v)
wanted = jax.grad(lambda *qkv: jnp.sum(plain(*qkv) ** 2), argnums=(0, 1, 2))(q, k, v)
print("loss agrees:", bool(jnp.isclose(value, jnp.sum(plain(q, k, v) ** 2))))
print("gradients agree:", all(bool(jnp.allclose(a, b, atol=1e-4)) for a, b in zip(gradients, wanted, strict=True)))
