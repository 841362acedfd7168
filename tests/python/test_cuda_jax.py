# SPDX-License-Identifier: Apache-2.0
"""heed.jax on a CUDA device, in a build with CUDA: the CPU's bits in float32, on XLA's stream, inside its command buffers too."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import heed  # noqa: E402
import heed.jax  # noqa: E402

if jax.default_backend() != "gpu" or not any(name.startswith("cuda.") for name in heed.kernel_names()):
    pytest.skip("no CUDA device of JAX's, or a build without CUDA", allow_module_level=True)

from test_jax import BIAS, DIFFERENTIATED, KEEP, OPTIONS, SINK, K, Q, V, draw  # noqa: E402


def on_cpu(tree):
    """The same in NumPy's arrays, which heed computes with on the CPU."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def assert_same_bits(found, expected):
    for there, here in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert there.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(np.asarray(there), np.asarray(here))


REFUSED = (ValueError, jax.errors.JaxRuntimeError)  # as XLA tells it, by platform
LONG = [draw(2, 8, 300, 64), draw(2, 2, 300, 64, seed=1), draw(2, 2, 300, 64, seed=2)]


@pytest.mark.parametrize("name", OPTIONS)
def test_jit_has_the_bits_of_the_cpu(name):
    call = functools.partial(heed.jax.attention, return_lse=True, **OPTIONS[name])
    expected = heed.attention(*on_cpu((Q, K, V)), return_lse=True, **on_cpu(OPTIONS[name]))
    assert_same_bits(jax.jit(call)(Q, K, V), expected)
    assert_same_bits(call(Q, K, V), expected)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_both_layouts_are_read_where_they_lie(layout):
    rows = [x.swapaxes(1, 2) for x in LONG] if layout == "bshd" else LONG
    found = jax.jit(functools.partial(heed.jax.attention, layout=layout, causal=True))(*rows)
    assert_same_bits(found, heed.attention(*on_cpu(rows), layout=layout, causal=True))


def test_packed_sequences_have_the_bits_of_the_cpu():
    q, k = draw(1, 4, 8, 16), draw(1, 2, 11, 16, seed=1)
    starts = {"query_starts": jnp.asarray([0, 3, 8]), "key_starts": jnp.asarray([0, 4, 11])}
    found = jax.jit(lambda q, k, starts: heed.jax.attention(q, k, k, causal="ends", **starts))(q, k, starts)
    assert_same_bits(found, heed.attention(*on_cpu((q, k, k)), causal="ends", **on_cpu(starts)))


def test_lists_may_come_out_of_the_program_itself():
    def call(q, k, v, lengths, seed):
        return heed.jax.attention(q, k, v, key_lengths=jnp.minimum(lengths * 2, 7), dropout=0.3, seed=seed + 1)

    found = jax.jit(call)(Q, K, V, jnp.asarray([4, 1]), jnp.uint32(8))
    assert_same_bits(found, heed.attention(*on_cpu((Q, K, V)), key_lengths=[7, 2], dropout=0.3, seed=9))


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_have_the_bits_of_the_cpu_every_time(name):
    options = DIFFERENTIATED[name]
    by = ("q", "k", "v", *(n for n in ("bias", "sink") if n in options))
    weights = draw(*Q.shape[:3], V.shape[3], seed=7)
    here = on_cpu(options)
    out, lse = heed.attention(*on_cpu((Q, K, V)), return_lse=True, **here)
    expected = heed.attention_backward(np.asarray(weights), *on_cpu((Q, K, V)), out, lse, by=by, **here)

    def loss(arrays):
        rest = {n: x for n, x in arrays.items() if n not in "qkv"}
        static = {n: x for n, x in options.items() if n not in by}
        return (heed.jax.attention(arrays["q"], arrays["k"], arrays["v"], **rest, **static) * weights).sum()

    gradient = jax.jit(jax.grad(loss))
    arrays = {"q": Q, "k": K, "v": V} | {n: options[n] for n in by if n in options}
    for _ in range(3):
        found = gradient(arrays)
        assert_same_bits([found[n] for n in by], expected)
    assert_same_bits([jax.grad(jax.checkpoint(loss))(arrays)[n] for n in by], expected)
    direct = jax.jit(lambda *a: heed.jax.attention_backward(*a, by=by, **options))
    assert_same_bits(direct(weights, Q, K, V, jnp.asarray(out), jnp.asarray(lse)), expected)


def test_vmap_has_the_bits_of_one_call_after_the_other():
    q, bias = draw(3, 2, 4, 5, 8), draw(3, 1, 4, 5, 7, seed=3)
    lengths = jnp.asarray([[7, 3], [1, 2], [7, 7]])
    found = jax.jit(jax.vmap(lambda q, b, n: heed.jax.attention(q, K, V, bias=b, key_lengths=n)))(q, bias, lengths)
    for i in range(3):
        here = on_cpu({"q": q[i], "k": K, "v": V, "bias": bias[i], "key_lengths": lengths[i]})
        assert_same_bits(found[i], heed.attention(here.pop("q"), here.pop("k"), here.pop("v"), **here))
    each = jax.jit(jax.vmap(jax.grad(lambda q: (heed.jax.attention(q, K, V) ** 2).sum())))(q)
    assert_same_bits(each[1], jax.grad(lambda q: (heed.jax.attention(q, K, V) ** 2).sum())(q[1]))


def exact(q, k, v, is_causal):
    """In double precision, of (batch, length, heads, dim)."""
    q, k, v = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sixteen_bits_are_as_close_as_jaxs(dtype, is_causal):
    q, k, v = (x.swapaxes(1, 2).astype(dtype) for x in LONG)
    wanted = exact(q, k, v, is_causal)
    ours, theirs = (
        jax.jit(functools.partial(attend, is_causal=is_causal))(q, k, v)
        for attend in (heed.jax.dot_product_attention, functools.partial(jax.nn.dot_product_attention, implementation="xla"))
    )
    assert ours.dtype == dtype
    errors = [np.abs(np.asarray(x, np.float64) - wanted).max() for x in (ours, theirs)]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_in_sixteen_bits_are_close_and_the_same_every_time(dtype):
    def gradients(q, k, v):
        return jax.grad(lambda q, k, v: heed.jax.attention(q, k, v, causal=True).astype(jnp.float32).sum(), argnums=(0, 1, 2))(q, k, v)

    there = [x.astype(dtype) for x in LONG]
    call = jax.jit(gradients)
    first, wanted = call(*there), call(*(x.astype(jnp.float32) for x in there))
    for x, y in zip(first, wanted, strict=True):
        x, y = np.asarray(x, np.float32), np.asarray(y)
        assert np.abs(x - y).max() <= 0.03 * np.abs(y).max()
    for _ in range(3):
        assert_same_bits(call(*there), first)


def layers(attend):
    """Attention between operations of XLA's, several times: each reads what the one before wrote on the stream."""

    def program(x, k, v):
        for _ in range(6):
            x = jnp.tanh(attend(x * 1.5 + 0.25, k, v)) - 0.125
        return x

    return program


def on_the_cpu_of_jax(program, arrays):
    """The same program on JAX's CPU: XLA's operations between calls are only those that both round alike."""
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.jit(program)(*(jnp.asarray(np.asarray(x)) for x in arrays))


def attend_and_halve(x, k, v):
    return heed.jax.attention(x * 0.5, k, v, causal=True) * 2


@pytest.mark.parametrize("options", [{}, {"xla_gpu_graph_min_graph_size": 1}], ids=["as_jax_does", "in_command_buffers"])
def test_calls_follow_each_other_on_xlas_stream(options):
    def program(x, k, v):
        for _ in range(8):
            x = attend_and_halve(x, k, v)
        return x

    call = jax.jit(program).lower(*LONG).compile(compiler_options=options)
    for factor in (1.0, 2.0, 0.5, 4.0):  # powers of 2: products are exact on both
        arrays = (LONG[0] * factor, LONG[1], LONG[2] * factor)
        assert_same_bits(call(*arrays), on_the_cpu_of_jax(program, arrays))


@pytest.mark.parametrize("options", [{}, {"xla_gpu_graph_min_graph_size": 1}], ids=["as_jax_does", "in_command_buffers"])
def test_a_step_of_training_has_the_same_bits_however_xla_launches_it(options):
    def step(q, k, v):
        value, gradients = jax.value_and_grad(lambda q, k, v: (layers(heed.jax.attention)(q, k, v) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)
        return value, [x - 0.01 * g for x, g in zip((q, k, v), gradients, strict=True)]

    same = [x.astype(jnp.bfloat16) for x in LONG]
    call = jax.jit(step).lower(*same).compile(compiler_options=options)
    _, first = call(*same)
    for _ in range(4):
        assert_same_bits(call(*same)[1], first)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in first)


def test_loops_of_xlas_call_it_at_every_step():
    def program(x, k, v):
        return jax.lax.fori_loop(0, 5, lambda _, x: attend_and_halve(x, k, v), x)

    assert_same_bits(jax.jit(program)(*LONG), on_the_cpu_of_jax(program, LONG))


def test_arrays_on_the_cpu_are_computed_there():
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = (jnp.asarray(np.asarray(x)) for x in (Q, K, V))
        found = jax.jit(heed.jax.attention)(q, k, v)
    assert found.devices() == {jax.devices("cpu")[0]}
    np.testing.assert_array_equal(np.asarray(found), heed.attention(*on_cpu((q, k, v))))


def test_masks_biases_and_sinks_lie_on_the_device():
    options = {"keep": KEEP, "bias": BIAS, "sink": SINK, "softcap": 3.0}
    assert_same_bits(jax.jit(functools.partial(heed.jax.attention, **options))(Q, K, V), heed.attention(*on_cpu((Q, K, V)), **on_cpu(options)))


def test_what_only_numbers_tell_is_refused_when_they_are_there():
    call = jax.jit(lambda lengths: heed.jax.attention(Q, K, V, key_lengths=lengths))
    with pytest.raises(REFUSED, match="key lengths: 8 for batch entry 0 is outside"):
        call(jnp.asarray([8, 0])).block_until_ready()
    assert_same_bits(call(jnp.asarray([7, 1])), heed.attention(*on_cpu((Q, K, V)), key_lengths=[7, 1]))


def test_float64_is_refused_in_a_sentence():
    jax.config.update("jax_enable_x64", True)
    try:
        x = jnp.ones((1, 2, 3, 8), jnp.float64)
        with pytest.raises(REFUSED, match="q.dtype: f64, which is computed on the CPU alone, and q.device is cuda"):
            jax.jit(heed.jax.attention)(x, x, x).block_until_ready()
    finally:
        jax.config.update("jax_enable_x64", False)
