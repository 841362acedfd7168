# SPDX-License-Identifier: Apache-2.0
"""heed under jax.grad: attention and its backward pass as a function with a gradient rule of its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import heed


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attention(q, k, v, causal):
    """heed.attention of (batch, heads, length, dim)."""
    return forward(q, k, v, causal)[0]


def forward(q, k, v, causal):
    shapes = (
        jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype),
        jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32),
    )
    call = functools.partial(heed.attention, causal=causal, return_lse=True)
    out, lse = jax.pure_callback(lambda *qkv: call(*map(np.asarray, qkv)), shapes, q, k, v)
    return out, (q, k, v, out, lse)


def backward(causal, saved, out_gradient):
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in saved[:3])
    call = functools.partial(heed.attention_backward, causal=causal)
    return jax.pure_callback(lambda *arrays: call(*map(np.asarray, arrays)), shapes, out_gradient, *saved)


attention.defvjp(forward, backward)


def plain(q, k, v):
    """The same in JAX's own operations."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) @ v


q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 4, 16, 8))
loss = jax.jit(jax.value_and_grad(lambda *qkv: jnp.sum(attention(*qkv, "ends") ** 2), argnums=(0, 1, 2)))
value, gradients = loss(q, k, v)
wanted = jax.grad(lambda *qkv: jnp.sum(plain(*qkv) ** 2), argnums=(0, 1, 2))(q, k, v)
print("loss agrees:", bool(jnp.isclose(value, jnp.sum(plain(q, k, v) ** 2))))
print("gradients agree:", all(bool(jnp.allclose(a, b, atol=1e-4)) for a, b in zip(gradients, wanted, strict=True)))
