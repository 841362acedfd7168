# SPDX-License-Identifier: Apache-2.0
"""Arrays on a CUDA device, in a build with CUDA: PyTorch's and CuPy's, on the stream that is current, with the CPU's bits."""

import numpy as np
import pytest

import heed

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or not any(name.startswith("cuda.") for name in heed.kernel_names()):
    pytest.skip("no CUDA device, or a build without CUDA", allow_module_level=True)


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K, V = random(2, 4, 37, 64, seed=1), random(2, 2, 300, 64, seed=2), random(2, 2, 300, 64, seed=3)


def on_cuda(*tensors):
    return [x.cuda() for x in tensors]


def test_results_lie_where_the_arguments_lie_and_have_the_bits_of_the_cpu():
    options = {"causal": "ends", "return_weights": True, "return_lse": True}
    wanted = heed.attention(Q, K, V, **options)
    found = heed.attention(*on_cuda(Q, K, V), **options)
    for there, here in zip(found, wanted, strict=True):
        assert there.device.type == "cuda" and there.dtype == here.dtype
        assert torch.equal(there.cpu(), here)


def test_arrays_of_options_lie_there_too():
    keep = random(2, 1, 37, 300, seed=4) > 0
    bias, sink = random(4, 37, 300, seed=5), random(4, seed=6)
    wanted = heed.attention(Q, K, V, keep=keep, bias=bias, sink=sink, softcap=3.0, key_lengths=[300, 20])
    found = heed.attention(
        *on_cuda(Q, K, V), keep=keep.cuda(), bias=bias.cuda(), sink=sink.cuda(), softcap=3.0, key_lengths=[300, 20]
    )
    assert torch.equal(found.cpu(), wanted)


def test_out_is_written_where_it_lies():
    out = torch.full((2, 4, 37, 64), torch.nan, device="cuda")
    assert heed.attention(*on_cuda(Q, K, V), out=out) is out
    assert torch.equal(out.cpu(), heed.attention(Q, K, V))


def test_calls_follow_the_stream_that_is_current():
    q, k, v = on_cuda(Q, K, V)
    wanted = heed.attention(Q + 1, K, V)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)  # what follows on this stream comes late
        found = heed.attention(q + 1, k, v).clone()
    torch.cuda.synchronize()
    assert torch.equal(found.cpu(), wanted)


def test_calls_are_captured_in_graphs():
    q, k, v = on_cuda(Q, K, V)
    out = torch.empty_like(q)
    heed.attention(q, k, v, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        heed.attention(q, k, v, out=out)
    q.copy_(Q * 2)
    out.fill_(0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), heed.attention(Q * 2, K, V))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 200])
def test_sixteen_bits_are_as_close_as_pytorchs(dtype, queries):
    q, k, v = (random(2, 8, n, 64, dtype=dtype, seed=n) for n in (queries, 300, 301))
    v = v[:, :, :300]
    exact = torch.nn.functional.scaled_dot_product_attention(*[x.double() for x in (q, k, v)])
    error = (heed.attention(*on_cuda(q, k, v)).cpu().double() - exact).abs().max()
    theirs = torch.nn.functional.scaled_dot_product_attention(*on_cuda(q, k, v))
    assert error <= 2 * (theirs.cpu().double() - exact).abs().max()


def eager(q, k, v, mask):
    """Attention in PyTorch's operators, which rounds scores and weights to 16 bits: what FlashAttention's rule compares with."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 200])
@pytest.mark.parametrize("dim", [64, 80, 160])
@pytest.mark.parametrize("mask", ["none", "bool", "bias"])
def test_the_general_kernel_is_as_close_as_pytorchs(dtype, queries, dim, mask):
    q, k, v = (random(2, 8, n, dim, dtype=dtype, seed=n) for n in (queries, 300, 301))
    v = v[:, :, :300]
    seen = random(2, 1, queries, 300, seed=7)
    options = {"none": {}, "bool": {"keep": seen > -1}, "bias": {"bias": seen.to(dtype)}}[mask]
    theirs = next(iter(options.values()), None)
    there = {name: x.cuda() for name, x in options.items()}
    exact = eager(*[x.double() for x in (q, k, v)], theirs if mask != "bias" else theirs.double())
    found = heed.attention(*on_cuda(q, k, v), kernel="cuda.general.sm80", **there).cpu().double()
    of_torch = eager(*on_cuda(q, k, v), None if theirs is None else theirs.cuda()).cpu().double()
    assert (found - exact).abs().max() <= 2 * (of_torch - exact).abs().max()


def test_f64_on_the_device_is_refused_in_a_sentence():
    with pytest.raises(heed.Error, match="q.dtype: float64, which is computed on the CPU alone, and q.device is cuda"):
        heed.attention(*on_cuda(Q.double(), K.double(), V.double()))


@pytest.mark.parametrize("options", [{}, {"page_size": 16}, {"quantize": "int8", "page_size": 32}, {"dtype": "bfloat16"}])
def test_caches_hold_on_the_device_what_they_hold_on_the_cpu(options):
    here = heed.KvCache(batch=2, kv_heads=2, capacity=400, dim=64, **options)
    there = heed.KvCache(batch=2, kv_heads=2, capacity=400, dim=64, device="cuda", **options)
    assert (here.device, there.device) == ("cpu", "cuda")
    for part in (slice(0, 250), slice(250, 251), slice(251, 300)):
        here.append(K[:, :, part], V[:, :, part])
        there.append(*on_cuda(K[:, :, part], V[:, :, part]))
        wanted = heed.attention(Q[:, :, :2], cache=here, causal=True)
        assert torch.equal(heed.attention(Q[:, :, :2].cuda(), cache=there, causal=True).cpu(), wanted)
    for x, y in zip(there.read(1, like=Q.cuda()), here.read(1, like=Q), strict=True):
        assert x.device.type == "cuda" and torch.equal(x.cpu(), y)
    assert torch.equal(heed.attention(Q[:, :, :2], cache=there.to("cpu"), causal=True), wanted)
    assert torch.equal(heed.attention(Q[:, :, :2].cuda(), cache=here.to("cuda"), causal=True).cpu(), wanted)


def test_pytorchs_own_call_is_taken():
    mask = random(2, 1, 37, 300, seed=4) > 0
    wanted = heed.scaled_dot_product_attention(Q, K, V, attn_mask=mask, enable_gqa=True)
    found = heed.scaled_dot_product_attention(*on_cuda(Q, K, V), attn_mask=mask.cuda(), enable_gqa=True)
    assert found.device.type == "cuda" and torch.equal(found.cpu(), wanted)


def test_cupys_arrays_are_taken_and_given():
    cupy = pytest.importorskip("cupy")
    q, k, v = (cupy.asarray(x.numpy()) for x in (Q, K, V))
    found, lse = heed.attention(q, k, v, causal="ends", return_lse=True)
    wanted = heed.attention(Q.numpy(), K.numpy(), V.numpy(), causal="ends", return_lse=True)
    assert isinstance(found, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    assert np.array_equal(found.get(), wanted[0]) and np.array_equal(lse.get(), wanted[1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda q, k, v: heed.attention(q, K, V), "k.device: cpu is not q.device: cuda"),
        (lambda q, k, v: heed.attention(Q, k, v), "k.device: cuda is not q.device: cpu"),
        (lambda q, k, v: heed.attention(q, k, v, key_lengths=torch.tensor([3, 4], device="cuda")), "key_lengths.device: cuda"),
        (lambda q, k, v: heed.attention_backward(Q, q, k, v, *heed.attention(q, k, v, return_lse=True)), "device: cpu is not q.device: cuda"),
        (lambda q, k, v: heed.rotate(q, positions=range(37)), "x.device: cuda, but it is read by the CPU"),
        (
            lambda q, k, v: heed.KvCache(batch=2, kv_heads=2, capacity=300, dim=64, device="cuda").append(K, V),
            "k.device: cpu is not the cache's: cuda",
        ),
    ],
)
def test_what_lies_elsewhere_is_refused(call, sentence):
    with pytest.raises(heed.Error, match=sentence):
        call(*on_cuda(Q, K, V))
