# SPDX-License-Identifier: Apache-2.0
"""heed.jax under the transforms of JAX: the bits of heed.attention, the gradients of JAX's own attention."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import heed  # noqa: E402
import heed.jax  # noqa: E402


def draw(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


B, H, G, S, T, D = 2, 4, 2, 5, 7, 8  # G: KV heads
Q, K, V = draw(B, H, S, D), draw(B, G, T, D, seed=1), draw(B, G, T, D, seed=2)
BIAS, SINK = draw(1, H, S, T, seed=3), draw(H, seed=4)
KEEP = draw(B, 1, S, T, seed=5) > -0.5

OPTIONS = {
    "plain": {},
    "causal_ends": {"causal": "ends"},
    "causal_starts": {"causal": "starts"},
    "window": {"window": (2, None, "ends")},
    "window_of_causal": {"causal": "ends", "window": (3, 0), "front": 1},
    "key_lengths": {"key_lengths": [7, 3]},
    "document": {"document": (np.array([0, 0, 0, 1, 1, 1, 1]), "ends")},
    "query_document": {"document": np.array([[0, 0, 0, 1, 1, 1, 1]] * 2), "query_document": np.array([0, 0, 0, 1, 1])},
    "keep": {"keep": KEEP},
    "hide": {"hide": KEEP[0, 0]},
    "bias": {"bias": BIAS},
    "alibi": {"alibi": ([0.5, 0.25, 0.125, 0.0625], "ends")},
    "numbers": {"scale": 0.3, "softcap": 4.0},
    "sink": {"sink": SINK},
    "dropout": {"dropout": 0.4, "seed": 2**40 + 7},
    "tiled": {"head_map": "tiled"},
    "query_lengths": {"query_lengths": [5, 2]},
    "threads": {"threads": 1},
}


def same_bits(ours, theirs):
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, jnp.float32) for name in OPTIONS), *(("window_of_causal", t) for t in (jnp.bfloat16, jnp.float16))]
)
def test_jit_has_the_bits_of_the_plain_call(name, dtype):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    options = OPTIONS[name]
    expected = heed.attention(q, k, v, return_lse=True, **options)
    call = functools.partial(heed.jax.attention, return_lse=True, **options)
    for found in (call(q, k, v), jax.jit(call)(q, k, v)):
        assert all(map(same_bits, found, expected))
    assert same_bits(jax.jit(functools.partial(heed.jax.attention, **options))(q, k, v), expected[0])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_batch_and_heads_may_be_missing(axes, layout):
    q, k, v = (x[(0,) * (4 - axes)] for x in (Q, K[:, :, :S], V[:, :, :S]))
    if layout == "bshd" and axes > 2:
        q, k, v = (x.swapaxes(-3, -2) for x in (q, k, v))
    found = jax.jit(lambda *qkv: heed.jax.attention(*qkv, layout=layout, causal=True, return_lse=True))(q, k, v)
    assert all(map(same_bits, found, heed.attention(q, k, v, layout=layout, causal=True, return_lse=True)))


def test_packed_sequences_have_the_bits_of_the_plain_call():
    q, k = draw(1, H, 8, D), draw(1, G, 11, D)
    starts = {"query_starts": jnp.asarray([0, 3, 8]), "key_starts": jnp.asarray([0, 4, 11])}
    found = jax.jit(lambda q, k, s: heed.jax.attention(q, k, k, causal="ends", **s))(q, k, starts)
    assert same_bits(found, heed.attention(q, k, k, causal="ends", **starts))


def test_arrays_among_the_options_may_be_traced():
    def call(q, k, v, lengths, keep, bias, seed):
        return heed.jax.attention(q, k, v, key_lengths=lengths, keep=keep, bias=bias, dropout=0.3, seed=seed)

    found = jax.jit(call)(Q, K, V, jnp.asarray([7, 3]), KEEP, BIAS, jnp.uint32(9))
    assert same_bits(found, heed.attention(Q, K, V, key_lengths=[7, 3], keep=KEEP, bias=BIAS, dropout=0.3, seed=9))


def test_a_key_of_jax_random_is_a_seed():
    key = jax.random.key(5)
    low, high = np.asarray(jax.random.key_data(key)).tolist()
    found = jax.jit(lambda seed: heed.jax.attention(Q, K, V, dropout=0.5, seed=seed))(key)
    assert same_bits(found, heed.attention(Q, K, V, dropout=0.5, seed=low + (high << 32)))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("default", ["threefry2x32", "rbg"])
def test_a_key_of_four_words_is_a_seed_whatever_the_default(impl, default):
    def dropped(seed):
        return heed.jax.attention(Q, K, V, dropout=0.5, seed=seed)

    with jax.default_prng_impl(default):
        keys = jax.random.split(jax.random.key(5, impl=impl), 3)
        words = np.asarray(jax.random.key_data(keys)).astype(np.uint64)
        seeds = (words[:, :2] + 2 * words[:, 2:]) % 2**32
        by_keys, by_words = jax.jit(jax.vmap(dropped))(keys), dropped(jax.random.key_data(keys)[2])
        for found, (low, high) in zip(by_keys, seeds.tolist(), strict=True):
            assert same_bits(found, heed.attention(Q, K, V, dropout=0.5, seed=low + (high << 32)))
        assert same_bits(by_words, by_keys[2])
        by = jax.jit(jax.grad(lambda q, key: heed.jax.attention(q, K, V, dropout=0.5, seed=key).sum()))(Q, keys[0])
        low, high = seeds[0].tolist()
        assert same_bits(by, jax.grad(lambda q: heed.jax.attention(q, K, V, dropout=0.5, seed=low + (high << 32)).sum())(Q))


def test_integers_of_NumPy_are_taken_whole_or_refused():
    """jnp.asarray would cut them to 32 bits."""
    for seed in (np.int64(2**40 + 7), np.uint64(2**63 + 7), np.asarray(2**40 + 7)):
        assert same_bits(heed.jax.attention(Q, K, V, dropout=0.5, seed=seed), heed.attention(Q, K, V, dropout=0.5, seed=int(seed)))
    for options in ({"document": np.array([2**32, 0, 0, 0, 0, 1, 1])}, {"key_lengths": np.array([2**32 + 7, 1])}):
        with pytest.raises(heed.Error, match=f"^{next(iter(options))}: {2**32}|{2**32 + 7} is no number of 32 bits"):
            heed.jax.attention(Q, K, V, causal="ends", **options)
    with pytest.raises(heed.Error, match=f"^seed: {2**32} is outside"):
        heed.jax.attention(Q, K, V, dropout=0.5, seed=np.array([2**32, 0]))


def test_what_is_no_array_is_refused_by_its_name():
    for name in ("q", "keep", "bias", "document", "key_lengths", "seed", "alibi"):
        with pytest.raises(heed.KindError, match=f"^{name}"):
            heed.jax.attention(**{"q": Q, "k": K, "v": V, "causal": "ends", "dropout": 0.5, "seed": 1} | {name: "words"})


def plain(q, k, v, *, bias=None, sink=None, causal=None, softcap=None, scale=None, **masks):
    """(out, lse) in JAX's own operations."""
    groups = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x, groups, 1) for x in (k, v))
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    seen = jnp.ones(scores.shape, bool)
    if causal is not None:
        seen = seen & jnp.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
    if "keep" in masks:
        seen = seen & masks["keep"]
    scores = jnp.where(seen, scores, -jnp.inf)
    if sink is not None:
        extra = jnp.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, extra], -1)
    weights = jax.nn.softmax(scores, -1)[..., : k.shape[2]]
    return weights @ v, jax.nn.logsumexp(scores, -1)


def loss(attend, out_weights=draw(B, H, S, D, seed=7), lse_weights=draw(B, H, S, seed=8)):
    def value(arrays):
        out, lse = attend(**arrays)
        return (out * out_weights).sum() + (lse * lse_weights).sum()

    return value


def near(ours, theirs):
    return all(map(functools.partial(np.allclose, rtol=1e-4, atol=1e-5), jax.tree.leaves(ours), jax.tree.leaves(theirs)))


DIFFERENTIATED = {
    "plain": {},
    "causal": {"causal": "ends"},
    "softcap": {"softcap": 3.0, "scale": 0.5},
    "bias": {"bias": BIAS},
    "sink": {"sink": SINK},
    "all": {"bias": BIAS, "sink": SINK, "causal": "ends"},
}


@pytest.mark.parametrize(
    ("name", "transform"), [*((name, "jit") for name in DIFFERENTIATED), ("all", "checkpoint"), ("all", "none")]
)
def test_gradients_are_those_of_the_formula(name, transform):
    options = DIFFERENTIATED[name]
    arrays = {"q": Q, "k": K, "v": V} | {n: x for n, x in options.items() if n in ("bias", "sink")}
    static = {n: x for n, x in options.items() if n not in arrays}
    ours = functools.partial(heed.jax.attention, return_lse=True, **static)
    wrapped = {"jit": jax.jit, "checkpoint": jax.checkpoint, "none": lambda f: f}[transform](
        lambda arrays: loss(lambda q, k, v, **rest: ours(q, k, v, **rest))(arrays)
    )
    assert near(jax.grad(wrapped)(arrays), jax.jit(jax.grad(loss(functools.partial(plain, **static))))(arrays))


def test_gradients_have_the_bits_of_heeds_backward_every_time():
    out, lse = heed.attention(Q, K, V, causal="ends", return_lse=True)
    expected = heed.attention_backward(draw(B, H, S, D, seed=7), Q, K, V, out, lse, causal="ends")
    call = jax.jit(jax.grad(lambda qkv: (heed.jax.attention(*qkv, causal="ends") * draw(B, H, S, D, seed=7)).sum()))
    for _ in range(3):
        assert all(map(same_bits, call((Q, K, V)), expected))
    found = jax.jit(lambda *a: heed.jax.attention_backward(*a, causal="ends"))(draw(B, H, S, D, seed=7), Q, K, V, out, lse)
    assert all(map(same_bits, found, expected))


def test_a_gradient_that_nobody_asks_for_is_not_computed():
    program = jax.jit(jax.grad(lambda q: heed.jax.attention(q, K, V, bias=BIAS).sum())).lower(Q).as_text()
    assert 'by = "q"' in program


def test_a_log_sum_exp_that_nobody_asks_for_is_not_computed():
    def results(call):
        (line,) = [line for line in jax.jit(call).lower(Q).as_text().splitlines() if "@heed_attention(" in line]
        return line.partition("->")[2].count("tensor<")

    assert results(lambda q: heed.jax.attention(q, K, V)) == 1
    assert results(lambda q: heed.jax.dot_product_attention(q, q, q)) == 1
    assert results(lambda q: heed.jax.attention(q, K, V, return_lse=True)) == 2
    assert results(lambda q: jax.vmap(lambda q: heed.jax.attention(q[None], K[:1], V[:1]))(q)) == 1


def test_no_gradient_by_slopes_is_said():
    with pytest.raises(heed.KindError, match="^alibi: heed has no gradient by it; pass the bias that it makes"):
        jax.grad(lambda s: heed.jax.attention(Q, K, V, alibi=(s, "ends")).sum())(jnp.ones(H))


def test_the_gradient_of_a_gradient_and_forward_mode_are_refused():
    with pytest.raises(Exception, match="ffi_call|custom_vjp|differentiat"):
        jax.jvp(lambda q: heed.jax.attention(q, K, V), (Q,), (Q,))
    with pytest.raises(Exception, match="ffi_call|differentiat|custom_vmap"):
        jax.grad(lambda q: jax.grad(lambda q: heed.jax.attention(q, K, V).sum())(q).sum())(Q)


MAPPED = {
    "qkv": ({"q": 0, "k": 0, "v": 0}, {}),
    "other_axes": ({"q": 1, "k": 2, "v": -1}, {}),
    "shared_keys": ({"q": 0}, {}),
    "shared_queries": ({"k": 0, "v": 0}, {}),
    "masks": ({"q": 0, "k": 0, "v": 0, "keep": 0, "bias": 0}, {}),
    "shared_masks": ({"q": 0, "k": 0, "v": 0}, {"keep": KEEP, "bias": BIAS, "key_lengths": jnp.asarray([7, 3])}),
    "lengths": ({"q": 0, "k": 0, "v": 0, "key_lengths": 0}, {}),
    "sink": ({"q": 0, "k": 0, "v": 0, "sink": 0}, {}),
    "seed": ({"q": 0, "seed": 0}, {"dropout": 0.5}),
    "dropout": ({"q": 0}, {"dropout": 0.5, "seed": 3}),
    "dropout, a mapped bias": ({"bias": 1}, {"dropout": 0.5, "seed": 3}),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_has_the_bits_of_one_call_after_the_other(name):
    axes, shared = MAPPED[name]
    one = {"q": Q, "k": K, "v": V, "keep": KEEP, "bias": BIAS, "sink": SINK, "key_lengths": jnp.asarray([7, 3]), "seed": jnp.uint32(3)}
    many = {}
    for n, axis in axes.items():
        stack = [one[n] if n == "keep" else (one[n] * (i + 1)) % 8 if n == "key_lengths" else one[n] * (i + 1) for i in range(3)]
        many[n] = jnp.stack(stack, axis)
    rest = {n: one[n] for n in ("q", "k", "v") if n not in axes} | shared

    def call(arrays):
        arrays = arrays | rest
        return heed.jax.attention(arrays.pop("q"), arrays.pop("k"), arrays.pop("v"), return_lse=True, **arrays)

    found = jax.jit(jax.vmap(call, in_axes=(axes,)))(many)
    for i in range(3):
        expected = call({n: jnp.take(many[n], i, axis) for n, axis in axes.items()})
        assert all(same_bits(x[i], y) for x, y in zip(found, expected, strict=True))


def test_gradients_under_dropout_and_vmap_are_those_of_one_call_after_the_other():
    q = draw(3, B, H, S, D)
    by = jax.grad(lambda q, k: (heed.jax.attention(q, k, V, dropout=0.5, seed=3) ** 2).sum(), argnums=(0, 1))
    found = jax.vmap(by, in_axes=(0, None))(q, K)
    for i in range(3):
        assert all(same_bits(x[i], y) for x, y in zip(found, by(q[i], K), strict=True))


def test_vmap_of_vmap_merges_both_axes():
    q = draw(2, 3, B, H, S, D)
    found = jax.vmap(jax.vmap(lambda q: heed.jax.attention(q, K, V)))(q)
    assert same_bits(found[1, 2], heed.attention(q[1, 2], K, V))


@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_and_grad_go_together_either_way(batch):
    q, k, v = draw(3, batch, H, S, D), draw(batch, G, T, D, seed=1), draw(3, batch, G, T, D, seed=2)
    bias = draw(1, H, S, T, seed=3)
    of = {"ours": lambda *a: heed.jax.attention(*a[:3], bias=a[3]), "theirs": lambda *a: plain(*a[:3], bias=a[3])[0]}
    found = {}
    for name, attend in of.items():
        each = jax.vmap(lambda *a: jax.grad(lambda *a: (attend(*a) ** 2).sum(), argnums=(0, 1, 2, 3))(*a), in_axes=(0, None, 0, None))
        total = jax.grad(lambda *a: (jax.vmap(attend, in_axes=(0, None, 0, None))(*a) ** 2).sum(), argnums=(0, 1, 2, 3))
        found[name] = [jax.jit(each)(q, k, v, bias), jax.jit(total)(q, k, v, bias)]
    assert near(found["ours"], found["theirs"])


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        ({"k": K[..., :4]}, ValueError, r"^k\.dim: 4 is not q\.dim: 8"),
        ({"q": Q[:, :3]}, ValueError, r"^k\.heads: 2 does not divide q\.heads: 3"),
        ({"causal": True}, ValueError, "^causal: 5 queries, 7 keys; say"),
        ({"is_causal": True}, TypeError, "^is_causal: there is no such keyword argument; say causal=True"),
        ({"bias": jnp.ones((3, 3))}, ValueError, "^.*bias.* does not broadcast"),
        ({"keep": jnp.ones((S, T))}, TypeError, "^keep.dtype: float32 is not bool"),
        ({"q": jnp.ones((B, H, S, D), jnp.int32)}, TypeError, "^q.dtype: int32 is none of"),
        ({"return_weights": True}, TypeError, "^return_weights: is no option under JAX"),
        ({"seed": -1, "dropout": 0.5}, ValueError, "^seed: -1 is outside"),
        ({"dropout": 0.5}, ValueError, "^dropout: needs a seed, an integer or a key of jax.random"),
        ({"layout": "sbhd"}, ValueError, '^layout: "sbhd" is neither'),
    ],
)
def test_what_does_not_fit_is_refused_while_jax_traces(change, kind, sentence):
    arrays = {"q": Q, "k": K, "v": V} | change

    def call(qkv):
        return heed.jax.attention(*qkv, **{n: x for n, x in arrays.items() if n not in "qkv"})

    with pytest.raises(kind, match=sentence) as refused:
        jax.jit(call)([arrays[n] for n in "qkv"])
    assert isinstance(refused.value, heed.Error)


def test_what_only_numbers_tell_is_refused_when_they_are_there():
    call = jax.jit(lambda lengths: heed.jax.attention(Q, K, V, key_lengths=lengths))
    call(jnp.asarray([7, 0])).block_until_ready()
    with pytest.raises(ValueError, match="key lengths: 8 for batch entry 0 is outside"):
        call(jnp.asarray([8, 0])).block_until_ready()


def test_no_program_calls_python():
    text = jax.jit(lambda q: heed.jax.attention(q, K, V)).lower(Q).as_text()
    assert "heed_attention" in text and "callback" not in text


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, heed.jax
from jax.sharding import Mesh, PartitionSpec as P
q, k, v = (jnp.asarray(np.random.default_rng(i).standard_normal((4, 2, 6, 8)), jnp.float32) for i in range(3))
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("batch", "heads"))
spec = P("batch", "heads")
def attend(q, k, v):
    return heed.jax.attention(q, k, v, causal=True)
shared = jax.jit(jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec))
assert (shared(q, k, v) == attend(q, k, v)).all()
loss = lambda call: jax.grad(lambda *a: (call(*a) ** 2).sum(), argnums=(0, 1, 2))
assert all((x == y).all() for x, y in zip(loss(shared)(q, k, v), loss(attend)(q, k, v)))
biased = lambda q, k, v, b: heed.jax.attention(q, k, v, bias=b)
shared = jax.jit(jax.shard_map(biased, mesh=mesh, in_specs=(spec,) * 3 + (P(),), out_specs=spec))
one = jnp.ones((1, 1, 6, 6))
assert (shared(q, k, v, one) == biased(q, k, v, one)).all()
ours, theirs = (jax.grad(lambda b: (call(q, k, v, b) ** 2).sum())(one) for call in (shared, biased))
assert jnp.allclose(ours, theirs, atol=1e-4)
dropped = lambda q, k, v, key: heed.jax.attention(q, k, v, dropout=0.5, seed=key)
shared = jax.jit(jax.shard_map(dropped, mesh=mesh, in_specs=(spec,) * 3 + (P(),), out_specs=spec))
assert (shared(q, k, v, jax.random.key(1, impl="rbg"))[:2, :1] == dropped(q[:2, :1], k[:2, :1], v[:2, :1], jax.random.key(1, impl="rbg"))).all()
print(len(jax.devices()))
"""


def test_shard_map_over_four_devices_of_one_host_has_the_bits_of_one():
    ran = subprocess.run(
        [sys.executable, "-c", SHARDED], capture_output=True, text=True, cwd="/",
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert ran.stdout.strip() == "4", ran.stderr[-2000:]


# jax.nn.dot_product_attention's arguments.


@pytest.mark.parametrize(("kv_heads", "batched", "dtype"), [(4, True, jnp.float32), (2, False, jnp.float32), (1, True, jnp.bfloat16)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.7},
        {"bias": draw(1, H, S, S, seed=9)},
        {"mask": draw(1, 1, S, S, seed=9) > -1.0},
        {"local_window_size": 1},
        {"local_window_size": (2, 0)},
        {"is_causal": True, "local_window_size": (1, 3)},
        {"key_value_seq_lengths": [5, 3], "query_seq_lengths": [2, 5]},
    ],
    ids=lambda options: "_".join(options) or "plain",
)
def test_dot_product_attention_agrees_with_jaxs(options, kv_heads, batched, dtype):
    q, k, v = draw(2, S, H, D, dtype=dtype), draw(2, S, kv_heads, D, seed=1, dtype=dtype), draw(2, S, kv_heads, D, seed=2, dtype=dtype)
    options = {n: jnp.asarray(x) if n.endswith("lengths") else x for n, x in options.items()}
    if not batched:
        if "query_seq_lengths" in options:
            options = {n: x[:1] for n, x in options.items()}
        q, k, v = q[0], k[0], v[0]

    def value(attend, *qkv):
        return (attend(*qkv, **options).astype(jnp.float32) ** 2).sum()

    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == jnp.float32 else {"rtol": 5e-2, "atol": 5e-2}
    close = functools.partial(np.testing.assert_allclose, **tolerance)
    ours, theirs = heed.jax.dot_product_attention, jax.nn.dot_product_attention
    as_floats = functools.partial(np.asarray, dtype=np.float32)
    close(as_floats(jax.jit(functools.partial(ours, **options))(q, k, v)), as_floats(theirs(q, k, v, **options)))
    if dtype == jnp.float32:
        gradients = [jax.jit(jax.grad(functools.partial(value, attend), argnums=(0, 1, 2)))(q, k, v) for attend in (ours, theirs)]
        for found, expected in zip(*gradients, strict=True):
            close(found, expected)


def test_the_residual_is_jaxs():
    q = draw(2, S, H, D)
    ours, theirs = (f(q, q, q, return_residual=True) for f in (heed.jax.dot_product_attention, jax.nn.dot_product_attention))
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["key_lengths", "query_lengths"])
def test_counts_that_are_no_integers_are_refused_while_jax_traces(name):
    with pytest.raises(heed.KindError, match=f"{name}.dtype: float32 is no integer type"):
        jax.jit(lambda q, n: heed.jax.attention(q, q, q, **{name: n}))(jnp.ones((1, 2, 4, 8)), jnp.ones(1))


def test_integers_of_64_bits_are_taken_whole_or_refused():
    with jax.enable_x64(True):
        q = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 4, 8)))
        for name, numbers in (("document", [2**32, 0, 1, 1]), ("key_lengths", [2**32 + 2])):
            with pytest.raises(heed.Error, match=f"{name}: {numbers[0]} is no number of 32 bits"):
                heed.jax.attention(q, q, q, **{name: jnp.array(numbers)})
        with pytest.raises(heed.KindError, match="document.dtype: int64, and nobody can tell while JAX traces"):
            jax.jit(lambda q, ids: heed.jax.attention(q, q, q, document=ids))(q, jnp.arange(4))
        with pytest.raises(Exception, match="key lengths: 2147483647 for batch entry 0 is outside"):
            jax.jit(lambda q, n: heed.jax.attention(q, q, q, key_lengths=n))(q, jnp.array([2**32 + 2])).block_until_ready()
        by_array, by_int = (heed.jax.attention(q, q, q, dropout=0.5, seed=seed) for seed in (jnp.asarray(2**32 + 3), 2**32 + 3))
        assert (by_array == by_int).all() and not (by_int == heed.jax.attention(q, q, q, dropout=0.5, seed=3)).all()


def test_a_backward_call_refuses_results_of_another_shape():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32))
    out, lse = heed.jax.attention(x, x, x, return_lse=True)
    with pytest.raises(heed.Error, match=r"out.shape: \(8, 6\) is not that of the call"):
        heed.jax.attention_backward(out, x, x, x, out.T, lse)
