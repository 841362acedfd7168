# SPDX-License-Identifier: Apache-2.0
"""PyTorch negates some tensors only when it reads them: their memory holds the other sign. What heed reads is what PyTorch
would print, by every way in, and memory of the other sign is never written."""

import pytest
import torch

import heed
import heed.onnx
import heed.torch


def negated(tensor):
    """The same numbers, held with the other sign."""
    view = torch._neg_view(-tensor.detach())
    assert view.is_neg() and torch.equal(view, tensor)
    return view


def imaginary(tensor):
    """The same numbers as the imaginary part of a conjugate, which is how the bit usually comes about."""
    view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert view.is_neg() and torch.equal(view, tensor)
    return view


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K, V = (draw(2, 3, 4, 8, seed=n) for n in range(3))
X, WEIGHT = draw(2, 5, 8), draw(8, 8)


def appended(k, v):
    cache = heed.KvCache(batch=2, kv_heads=3, capacity=8, dim=8)
    cache.append(k, v)
    return torch.from_numpy(cache.read(1)[0])


def appended_to_one(k, v):
    cache = heed.KvCache(batch=2, kv_heads=3, capacity=8, dim=8)
    cache.append_to(1, k[:1], v[:1])
    return torch.from_numpy(cache.read(1)[1])


def loaded(weight):
    layer = heed.AttentionLayer(8, 2)
    layer.load({"q_proj.weight": weight} | {f"{letter}_proj.weight": WEIGHT for letter in "kvo"})
    return layer(X)


def in_a_module(weight):
    layer = heed.torch.AttentionLayer(8, 2).requires_grad_(False)
    for letter in "qkvo":
        tensor = weight if letter == "q" else WEIGHT
        layer.get_submodule(f"{letter}_proj").weight = torch.nn.Parameter(tensor, requires_grad=False)
    return layer(X)


WAYS_IN = {
    "attention": (lambda q, k, v: heed.attention(q, k, v, causal=True), (Q, K, V)),
    "a bias": (lambda bias: heed.attention(Q, K, V, bias=bias), (draw(4, 4),)),
    "a sink": (lambda sink: heed.attention(Q, K, V, sink=sink), (draw(3),)),
    "the drop-in": (lambda *qkv: heed.scaled_dot_product_attention(*qkv), (Q, K, V)),
    "the drop-in with a mask": (lambda mask: heed.scaled_dot_product_attention(Q, K, V, mask), (draw(4, 4),)),
    "heed.torch": (heed.torch.scaled_dot_product_attention, (Q, K, V)),
    "heed.onnx": (lambda q, k, v: heed.onnx.attention(q, k, v)[0], (Q, K, V)),
    "merge": (lambda out, lse: heed.merge((out, lse), (V, lse))[0], (Q, draw(2, 3, 4))),
    "rotate": (lambda x: heed.rotate(x), (Q,)),
    "a cache": (appended, (K, V)),
    "one sequence of a cache": (appended_to_one, (K, V)),
    "the layer": (lambda x, context: heed.AttentionLayer(8, 2)(x, context), (X, draw(2, 7, 8, seed=1))),
    "the layer's weights": (loaded, (WEIGHT,)),
    "a module's weights": (in_a_module, (WEIGHT,)),
    "positions": (lambda p: heed.rotate(Q, p), (torch.arange(4),)),
    "tokens": (lambda tokens: heed.padding_mask(tokens, 4), (torch.tensor([[4, 7, 0], [1, 4, 0]]),)),
}


@pytest.mark.parametrize("name", WAYS_IN)
@pytest.mark.parametrize("way", [negated, imaginary])
def test_a_tensor_with_the_negative_bit_is_read_as_pytorch_reads_it(name, way):
    call, tensors = WAYS_IN[name]
    if way is imaginary and not tensors[0].is_floating_point():
        pytest.skip("complex numbers are floating")
    assert torch.equal(call(*map(way, tensors)), call(*tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_negative_bit_is_seen_in_16_bits_too(dtype):
    tensors = [draw(2, 3, 4, 8, seed=n, dtype=dtype) for n in range(3)]
    expected = heed.attention(*tensors)
    assert torch.equal(heed.attention(*map(negated, tensors)), expected)
    assert torch.equal(heed.onnx.attention(*map(negated, tensors))[0], heed.onnx.attention(*tensors)[0])


SENTENCE = "^out: its negative bit is set"


@pytest.mark.parametrize(
    "call",
    [
        lambda out: heed.attention(Q, K, V, out=out),
        lambda out: heed.rotate(Q, out=out),
        lambda out: heed.AttentionLayer(8, 2)(Q[0], out=out[0]),
    ],
    ids=["attention", "rotate", "the layer"],
)
def test_an_out_with_the_negative_bit_is_refused_and_left_alone(call):
    out = negated(torch.full((2, 3, 4, 8), 7.0))
    with pytest.raises(heed.Error, match=SENTENCE):
        call(out)
    assert torch.equal(out, torch.full((2, 3, 4, 8), 7.0))


def test_a_conjugate_is_refused_as_the_complex_numbers_it_holds():
    with pytest.raises(heed.KindError, match="q.dtype: torch.complex64 is not an element type heed knows"):
        heed.attention(torch.complex(Q, Q).conj(), K, V)

