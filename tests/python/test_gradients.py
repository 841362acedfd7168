# SPDX-License-Identifier: Apache-2.0
"""heed.attention_backward: gradients for arrays of any library."""

import numpy
import pytest

import heed

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

SHAPES = {
    "multi-head": ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)),
    "grouped": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "without a batch": ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
    "one head": ((5, 8), (7, 8), (7, 8)),
}


def draw(*shape, seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def by_torch(out_gradient, q, k, v, bias=None, sink=None, *, causal=False, softcap=None, lse_gradient=None):
    """The gradients by autograd through the textbook, in float64."""
    given = [None if x is None else torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v, bias, sink)]
    tq, tk, tv, tbias, tsink = given
    if tq.ndim > 2 and tq.shape[-3] != tk.shape[-3]:
        group = tq.shape[-3] // tk.shape[-3]
        tk, tv = tk.repeat_interleave(group, -3), tv.repeat_interleave(group, -3)
    scores = tq @ tk.mT / tq.shape[-1] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if tbias is not None:
        scores = scores + tbias
    if causal:
        queries, keys = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), -torch.inf)
    logits = scores
    if tsink is not None:
        logits = torch.cat([scores, tsink[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = torch.softmax(logits, -1)[..., : scores.shape[-1]]
    loss = (weights @ tv * torch.tensor(out_gradient)).sum()
    if lse_gradient is not None:
        loss = loss + (torch.logsumexp(logits, -1) * torch.tensor(lse_gradient)).sum()
    loss.backward()
    return [x.grad.numpy() for x in given if x is not None]


def close(ours, theirs):
    return all(numpy.allclose(numpy.asarray(a), b, atol=2e-5, rtol=2e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_gradients_are_those_of_autograd_and_of_the_callers_library(library, shapes):
    arrays = [draw(*shape, seed=n) for n, shape in enumerate(SHAPES[shapes])]
    kind = {"numpy": numpy.asarray, "torch": torch.from_numpy, "jax": jax.numpy.asarray}[library]
    q, k, v = map(kind, arrays)
    out, lse = heed.attention(q, k, v, causal="ends", return_lse=True)
    out_gradient = draw(*out.shape, seed=9)
    found = heed.attention_backward(kind(out_gradient), q, k, v, out, lse, causal="ends")
    assert [type(x) for x in found] == [type(q)] * 3 and [x.shape for x in found] == [q.shape, k.shape, v.shape]
    assert close(found, by_torch(out_gradient, *arrays, causal=True))


def test_a_bias_a_sink_a_softcap_and_a_log_sum_exp_have_their_part():
    q, k, v, bias, sink = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2), draw(4, 1, 7, seed=3), draw(4, seed=4)
    options = {"bias": bias, "sink": sink, "softcap": 2.0}
    out, lse = heed.attention(q, k, v, return_lse=True, **options)
    gradients = draw(*out.shape, seed=5), draw(*lse.shape, seed=6)
    by = ("sink", "q", "k", "v", "bias")
    found = heed.attention_backward(gradients[0], q, k, v, out, lse, lse_gradient=gradients[1], by=by, **options)
    wanted = by_torch(gradients[0], q, k, v, bias, sink, softcap=2.0, lse_gradient=gradients[1])
    assert [x.shape for x in found] == [q.shape, k.shape, v.shape, bias.shape, sink.shape] and close(found, wanted)


def test_asking_for_less_gives_the_same_bits():
    q, k, v = draw(1, 4, 33, 16), draw(1, 2, 40, 16, seed=1), draw(1, 2, 40, 16, seed=2)
    out, lse = heed.attention(q, k, v, return_lse=True)
    everything = heed.attention_backward(out, q, k, v, out, lse)
    (only,) = heed.attention_backward(out, q, k, v, out, lse, by=["k"], threads=1)
    assert only.tobytes() == everything[1].tobytes()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_of_any_strides_are_written_with_the_same_bits(library):
    kind = {"numpy": numpy.asarray, "torch": torch.from_numpy}[library]
    q, k, v = map(kind, (draw(2, 4, 9, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)))
    out, lse = heed.attention(q, k, v, return_lse=True)
    packed = heed.attention_backward(out, q, k, v, out, lse)
    tokens_first = [kind(numpy.empty((x.shape[0], x.shape[2], x.shape[1], 8), "float32")).swapaxes(1, 2) for x in (q, k, v)]
    found = heed.attention_backward(out, q, k, v, out, lse, into=tokens_first)
    assert all(a is b for a, b in zip(found, tokens_first, strict=True))
    assert [numpy.asarray(x).tobytes() for x in found] == [numpy.asarray(x).tobytes() for x in packed]
    (only,) = heed.attention_backward(out, q, k, v, out, lse, by=["k"], into=(tokens_first[1],))
    assert only is tokens_first[1]


def test_dropout_of_one_seed_drops_the_same_weights_both_ways():
    q, k = draw(1, 1, 6, 8), draw(1, 1, 6, 8, seed=1)
    v = numpy.eye(6, dtype=numpy.float32)[None, None]
    options = {"dropout": 0.5, "seed": 3}
    out, lse, *_ = heed.attention(q, k, v, return_lse=True, **options)  # out is the weights themselves
    (dv,) = heed.attention_backward(numpy.ones_like(out), q, k, v, out, lse, by=("v",), **options)
    assert numpy.allclose(dv[0, 0, :, 0], out[0, 0].sum(0), atol=1e-6)


def test_every_kernel_for_gradients_can_be_forced():
    names = heed.backward_kernel_names()
    assert len(names) >= 2
    for name in names:
        q = draw(2, 5, 8).astype("float64" if ".f64." in name else "float32")
        out, lse = heed.attention(q, q, q, return_lse=True)
        assert close(heed.attention_backward(out, q, q, q, out, lse, kernel=name), by_torch(out, q, q, q))


REFUSALS = {
    "a name that is no argument": ({"by": ("w",)}, 'by: "w" is none of "q", "k", "v", "bias", "sink"'),
    "a name twice": ({"by": ("q", "v", "q")}, '^by: "q" is named twice'),
    "no names": ({"by": None}, "^by: NoneType is not a tuple of names of arguments"),
    "one word": ({"by": "q"}, "by: .* a tuple of names of arguments"),
    "an array too few": ({"into": (draw(2, 5, 8),)}, "into: 1 arrays for 3 gradients by q, k and v"),
    "one array": ({"into": draw(2, 5, 8)}, "into: .* a tuple of arrays"),
    "an array of another shape": ({"by": ["q"], "into": [draw(2, 4, 8)]}, r"^into\[q\].shape: "),
    "an array for two": ({"by": ["q", "k"], "into": [draw(2, 5, 8)] * 2}, r"^into\[k\]: shares memory with into\[q\]"),
    "an array of another rank": ({"by": ["v"], "into": [draw(5, 8)]}, "into.v."),
    "a bias that is not there": ({"by": ("bias",)}, 'by: "bias", but bias is not given'),
    "a cache": ({"cache": None}, "cache"),
    "what is returned": ({"return_lse": True}, "return_lse"),
    "a kernel of the forward pass": ({"kernel": "cpu.prefill.scalar"}, 'kernel.*"cpu.prefill.scalar" is not a kernel for gradients'),
    "a log-sum-exp of another shape": ({"lse": draw(2, 5, 1)}, "lse"),
    "a log-sum-exp of fewer queries": ({"lse": draw(2, 4)}, "^lse.shape: "),
    "an out of another type": ({"out": draw(2, 5, 8).astype("float16")}, "^out.dtype: float16 is neither q.dtype: float32 nor float32"),
    "a gradient of another type": ({"out_gradient": draw(2, 5, 8).astype("float16")}, "^out_gradient.dtype: float16 is neither"),
    "a gradient of lse of another type": ({"lse_gradient": draw(2, 5).astype("float16")}, "^lse_gradient.dtype: float16 is not float32"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_wrong_is_refused_in_a_sentence(case):
    q = draw(2, 5, 8)
    out, lse = heed.attention(q, q, q, return_lse=True)
    changed, sentence = REFUSALS[case]
    arguments = {"out_gradient": out, "q": q, "k": q, "v": q, "out": out, "lse": lse} | changed
    with pytest.raises((heed.Error, TypeError), match=sentence):
        heed.attention_backward(**arguments)
