# SPDX-License-Identifier: Apache-2.0
"""float64 is computed in float64, forward and backward, for arrays of every library; caches, layers and rotations refuse it."""

import jax
import numpy as np
import pytest
import torch

import heed
import heed.jax
import heed.torch

B, H, G, S, T, D = 2, 4, 2, 40, 70, 8  # G: KV heads
DRAW = np.random.default_rng(7)
Q, K, V = DRAW.standard_normal((B, H, S, D)), DRAW.standard_normal((B, G, T, D)), DRAW.standard_normal((B, G, T, D))
BIAS, SINK, KEEP = DRAW.standard_normal((1, H, S, T)), DRAW.standard_normal(H), DRAW.random((B, 1, S, T)) > 0.3
LIMIT = 1e-13  # some hundred roundings of numbers of the size of 1

OPTIONS = {
    "plain": {},
    "causal": {"causal": "ends"},
    "window": {"window": (9, 3, "ends"), "front": 2},
    "lengths": {"key_lengths": [70, 33]},
    "keep": {"keep": KEEP},
    "bias": {"bias": BIAS},
    "sink": {"sink": SINK},
    "numbers": {"scale": 1 / 3, "softcap": 2.7},
    "all": {"causal": "ends", "keep": KEEP, "bias": BIAS, "sink": SINK, "scale": 0.3, "softcap": 3.1},
}


def textbook(q, k, v, *, causal=None, window=None, front=0, key_lengths=None, keep=None, bias=None, sink=None, scale=None, softcap=None):
    """(out, lse) in PyTorch's own operations."""
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = q @ k.mT * (D**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    own, key = torch.arange(S)[:, None] + T - S, torch.arange(T)[None, :]
    seen = torch.ones(B, 1, S, T, dtype=torch.bool)
    if causal is not None:
        seen = seen & (key <= own)
    if window is not None:
        seen = seen & ((own - key <= window[0]) | (key < front)) & (key - own <= window[1])
    if key_lengths is not None:
        seen = seen & (key < torch.tensor(key_lengths)[:, None, None, None])
    if keep is not None:
        seen = seen & torch.as_tensor(keep)
    scores = scores.masked_fill(~seen, -torch.inf)
    logits = scores if sink is None else torch.cat([scores, sink[:, None, None].expand(B, H, S, 1)], -1)
    return torch.softmax(logits, -1)[..., :T] @ v, torch.logsumexp(logits, -1)


def close(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return ours.dtype == np.float64 and ours.shape == theirs.shape and np.abs(ours - theirs).max() <= LIMIT


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_are_those_of_the_textbook_in_float64(name, library):
    options = OPTIONS[name]
    kind = {"numpy": np.asarray, "torch": torch.as_tensor}[library]
    wide = {n: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    found = heed.attention(*map(kind, (Q, K, V)), return_lse=True, **options)
    assert all(map(close, found, textbook(*map(torch.as_tensor, (Q, K, V)), **wide)))


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_autograd_in_float64(name):
    options = {n: torch.tensor(x) if isinstance(x, np.ndarray) else x for n, x in OPTIONS[name].items()}
    by = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    for option in ("bias", "sink"):
        if option in options:
            by.append(options[option].requires_grad_())
    gradient, of_lse = torch.tensor(DRAW.standard_normal((B, H, S, D))), torch.tensor(DRAW.standard_normal((B, H, S)))

    def gradients(attend):
        out, lse = attend(*by[:3], **options)
        return torch.autograd.grad((out * gradient).sum() + (lse * of_lse).sum(), by)

    ours = gradients(lambda *qkv, **said: heed.torch.attention(*qkv, return_lse=True, **said))
    assert all(map(close, ours, gradients(textbook)))


@pytest.mark.parametrize("options", [{}, {"causal": "ends"}, {"bias": True}, {"sink": True}, {"softcap": 1.5, "head_map": "tiled"}], ids=str)
def test_many_gradients_at_once_are_those_of_one_after_the_other(options):
    given = dict(options)
    by = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    for name, array in (("bias", BIAS), ("sink", SINK)):
        if name in given:
            given[name] = torch.tensor(array, requires_grad=True)
            by.append(given[name])
    out, lse = heed.torch.attention(*by[:3], return_lse=True, **given)
    many = torch.tensor(DRAW.standard_normal((3, *out.shape))), torch.tensor(DRAW.standard_normal((3, *lse.shape)))
    found = torch.autograd.grad((out, lse), by, many, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad((out, lse), by, (many[0][n], many[1][n]), retain_graph=True) for n in range(3)]
    assert all(close(mine, torch.stack(others)) for mine, others in zip(found, zip(*each, strict=True), strict=True))


def test_threads_change_no_bit():
    found = [heed.attention(Q, K, V, causal="ends", threads=n) for n in (1, 2, 5)]
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("options", [{}, {"causal": "ends"}, {"bias": torch.tensor(BIAS)}, {"softcap": 2.0, "scale": 0.7}], ids=str)
def test_gradcheck_passes(options):
    q, k, v = (torch.tensor(x[:1, :, :6], requires_grad=True) for x in (Q, K, V))
    options = {name: x[:, :, :6, :6] if name == "bias" else x for name, x in options.items()}
    assert torch.autograd.gradcheck(lambda *qkv: heed.torch.attention(*qkv, return_lse=True, **options), (q, k, v))


def test_jax_computes_in_float64_where_it_is_enabled():
    with jax.enable_x64(True):
        q, k, v = map(jax.numpy.asarray, (Q, K, V))
        out, lse = jax.jit(lambda *qkv: heed.jax.attention(*qkv, causal="ends", return_lse=True))(q, k, v)
        expected = heed.attention(Q, K, V, causal="ends", return_lse=True)
        assert out.dtype == lse.dtype == np.float64
        assert np.array_equal(out, expected[0]) and np.array_equal(lse, expected[1])
        gradient = jax.jit(jax.grad(lambda q: (heed.jax.attention(q, k, v, causal="ends") ** 2).sum()))(q)
        wanted = torch.tensor(Q, requires_grad=True)
        (textbook(wanted, torch.tensor(K), torch.tensor(V), causal="ends")[0] ** 2).sum().backward()
        assert close(gradient, wanted.grad)


def test_results_over_two_halves_of_the_keys_are_merged_in_float64():
    halves = [heed.attention(Q, K[:, :, part], V[:, :, part], return_lse=True) for part in (slice(0, 30), slice(30, T))]
    out, lse = heed.merge(*halves)
    expected = heed.attention(Q, K, V, return_lse=True)
    assert close(out, expected[0]) and close(lse, expected[1])


def test_weights_and_scores_are_float64():
    out, weights, scores = heed.attention(Q, K, V, return_weights=True, return_scores="raw")
    assert close(scores, np.einsum("bhsd,bhtd->bhst", Q, K.repeat(H // G, 1)) * D**-0.5)
    assert close(weights.sum(-1), np.ones((B, H, S))) and close(np.einsum("bhst,bhtd->bhsd", weights, V.repeat(H // G, 1)), out)


REFUSED = {
    "a cache": (lambda: heed.attention(Q, cache=cache_of_float32()), "q.dtype: float64, but the keys of a cache are float32"),
    "what is appended": (lambda: heed.KvCache(batch=B, kv_heads=G, capacity=80, dim=D).append(K, V), "k.dtype: float64 is none of"),
    "a rotation": (lambda: heed.rotate(Q, np.arange(S), heed.Rotary()), "x.dtype: float64 is none of"),
    "a layer's input": (lambda: heed.AttentionLayer(16, 4)(np.ones((1, 3, 16))), "x.dtype: float64 is none of"),
    "a layer of torch that trains": (
        lambda: heed.torch.AttentionLayer(16, 4).double()(torch.ones(1, 3, 16, dtype=torch.float64)), "x.dtype: float64 is none of"),
    "keys of another type": (lambda: heed.attention(Q, K.astype(np.float32), V), "k.dtype: float32 is not q.dtype: float64"),
    "a query of another type": (lambda: heed.attention(Q.astype(np.float32), K, V), "k.dtype: float64 is not q.dtype: float32"),
}


def cache_of_float32():
    cache = heed.KvCache(batch=B, kv_heads=G, capacity=80, dim=D)
    cache.append(K.astype(np.float32), V.astype(np.float32))
    return cache


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(what):
    call, sentence = REFUSED[what]
    with pytest.raises(heed.KindError, match=f"^{sentence}"):
        call()


def test_the_rarest_dropout_scales_what_it_leaves():
    """Below 2**-32 no weight is dropped, and the rest are divided by 1 - p all the same (S7)."""
    rare = 2e-10
    out = heed.attention(Q, K, V, dropout=rare, seed=1)
    assert np.abs(out - heed.attention(Q, K, V) / (1 - rare)).max() <= LIMIT


@pytest.mark.parametrize("kernel", [None, "reference"])
def test_what_dropout_leaves_is_divided_by_one_less_the_very_probability(kernel):
    """0.1 is no float: with the nearest one a weight would be off by 1.7e-9 of itself."""
    dropped = {"dropout": 0.1, "seed": 3}
    out, weights, lse = heed.attention(Q, K, V, return_lse=True, return_weights=True, kernel=kernel, **dropped)
    plain = heed.attention(Q, K, V, return_weights=True)[1]
    assert 0 < (weights == 0).sum() and close(weights, np.where(weights == 0, 0.0, plain / (1 - 0.1)))
    assert close(out, weights @ V.repeat(H // G, 1))
    gradient = DRAW.standard_normal(out.shape)
    by_v = heed.attention_backward(gradient, Q, K, V, out, lse, kernel=kernel, **dropped)[2]
    assert close(by_v, (weights.swapaxes(2, 3) @ gradient).reshape(B, G, H // G, T, D).sum(2))
    with jax.enable_x64(True):
        assert close(heed.jax.attention(Q, K, V, **dropped), out)
    identity = torch.eye(8, dtype=torch.float64)[None, None]
    kept = heed.scaled_dot_product_attention(0 * identity, identity, identity, dropout_p=0.1)
    assert close(kept[kept != 0], torch.full_like(kept[kept != 0], 0.125 / (1 - 0.1)))


@pytest.mark.parametrize("name, number", [("softcap", 1e-50), ("scale", 1e-60), ("scale", -1e-60)])
def test_a_number_that_is_nothing_in_f32_is_named_as_it_was_given(name, number):
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    with pytest.raises(heed.Error, match=f"{name}: {number} is 0 in f32"):
        heed.attention(q, k, v, **{name: number})


def test_many_gradients_at_once_ignore_values_that_nobody_sees():
    v = torch.tensor(V)
    v[:, :, 60:] = torch.nan
    q = torch.tensor(Q, requires_grad=True)
    out = heed.torch.attention(q, torch.tensor(K), v, key_lengths=[60, 60])
    many = torch.autograd.grad(out, q, torch.ones(2, *out.shape, dtype=torch.float64), is_grads_batched=True)[0]
    assert torch.isfinite(many).all()
