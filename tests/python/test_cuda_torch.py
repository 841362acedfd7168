# SPDX-License-Identifier: Apache-2.0
"""heed.torch over tensors on a CUDA device, in a build with CUDA: the CPU's bits, PyTorch's current stream, its graphs."""

import copy

import pytest
from test_cuda import K, Q, V, on_cuda, random, torch

import heed
import heed.torch

X = random(2, 9, 64, seed=7)
ROTARY = heed.Rotary(base=500.0)


@pytest.fixture
def side_stream():
    """A stream of its own, on which everything comes late."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        yield
    torch.cuda.synchronize()


def layers(**how):
    """One layer twice: on the CPU, and on the device."""
    torch.manual_seed(3)
    here = heed.torch.AttentionLayer(model_dim=64, heads=4, kv_heads=2, **how).eval()
    return here, copy.deepcopy(here).cuda()


def torchs(layer, x):
    """The same layer in PyTorch's operators, for one without rotary."""
    weights = {name: w.to(x) for name, w in layer.state_dict().items()}
    q, k, v = ((x @ weights[f"{n}_proj.weight"].T).unflatten(-1, (-1, 16)).transpose(1, 2) for n in "qkv")
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ weights["o_proj.weight"].T


@pytest.mark.parametrize("mask", [None, random(2, 1, 37, 300, seed=4) > 0, random(2, 1, 37, 300, seed=4)])
def test_the_drop_in_has_the_bits_of_the_cpu(mask):
    wanted = heed.torch.scaled_dot_product_attention(Q, K, V, mask, enable_gqa=True)
    there = None if mask is None else mask.cuda()
    found = heed.torch.scaled_dot_product_attention(*on_cuda(Q, K, V), there, enable_gqa=True)
    assert found.device.type == "cuda" and torch.equal(found.cpu(), wanted)


def test_dropout_drops_what_it_drops_on_the_cpu():
    results = []
    for qkv in ((Q, K, V), on_cuda(Q, K, V)):
        torch.manual_seed(5)
        results.append(heed.torch.scaled_dot_product_attention(*qkv, dropout_p=0.3, enable_gqa=True).cpu())
    assert torch.equal(*results)


def test_the_drop_in_follows_the_stream_that_is_current(side_stream):
    q, k, v = (x.cuda(non_blocking=True) for x in (Q, K, V))
    found = heed.torch.scaled_dot_product_attention(q + 1, k, v, enable_gqa=True).clone()
    torch.cuda.current_stream().synchronize()
    assert torch.equal(found.cpu(), heed.torch.scaled_dot_product_attention(Q + 1, K, V, enable_gqa=True))


def test_the_compiler_traces_through():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def attend(q, k, v):
        return heed.torch.scaled_dot_product_attention(q * 2, k, v, enable_gqa=True) + 1

    with torch.no_grad():
        found = attend(*on_cuda(Q, K, V))
    assert torch.equal(found.cpu(), heed.torch.scaled_dot_product_attention(Q * 2, K, V, enable_gqa=True) + 1)


def test_autocast_of_the_device_is_followed():
    q, k, v = on_cuda(Q, K, V)
    with torch.autocast("cuda", torch.bfloat16):
        assert heed.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert heed.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True).dtype == torch.float32


def gradients(tensors, mask=None):
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    mask = None if mask is None else mask.detach().clone().requires_grad_()
    out = heed.torch.scaled_dot_product_attention(*tensors, mask, enable_gqa=True)
    out.backward(torch.ones_like(out) * torch.arange(out.shape[2], device=out.device)[:, None])
    return [x.grad for x in (*tensors, *([] if mask is None else [mask]))]


@pytest.mark.parametrize("mask", [None, random(2, 1, 37, 300, seed=4)])
def test_gradients_in_f32_have_the_bits_of_the_cpu(mask):
    wanted = gradients((Q, K, V), mask)
    found = gradients(on_cuda(Q, K, V), None if mask is None else mask.cuda())
    assert all(x.device.type == "cuda" and torch.equal(x.cpu(), y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits_are_close_and_the_same_every_time(dtype):
    there = [x.to(dtype) for x in on_cuda(Q, K, V)]
    wanted, found = gradients([x.float() for x in there]), gradients(there)
    for x, y in zip(found, wanted, strict=True):
        assert (x.float() - y).abs().max() <= 0.03 * y.abs().max()
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(gradients(there), found, strict=True))


def test_gradients_follow_the_stream_that_is_current(side_stream):
    there = [x.cuda(non_blocking=True) for x in (Q, K, V)]
    found = [x.clone() for x in gradients(there)]
    torch.cuda.current_stream().synchronize()
    assert all(torch.equal(x.cpu(), y) for x, y in zip(found, gradients((Q, K, V)), strict=True))


def test_the_compiler_traces_through_gradients():
    attend = torch.compile(
        lambda q, k, v: heed.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True), backend="aot_eager", fullgraph=True
    )
    tensors = [x.requires_grad_() for x in on_cuda(Q, K, V)]
    attend(*tensors).sum().backward()
    wanted = [x.detach().clone().requires_grad_() for x in (Q, K, V)]
    heed.torch.scaled_dot_product_attention(*wanted, enable_gqa=True).sum().backward()
    assert all(torch.equal(x.grad.cpu(), y.grad) for x, y in zip(tensors, wanted, strict=True))


def test_a_layer_trains_to_the_same_bits_twice():
    def losses():
        torch.manual_seed(3)
        layer = heed.torch.AttentionLayer(model_dim=64, heads=4, kv_heads=2, rotary=ROTARY).cuda().bfloat16()
        steps = torch.optim.SGD(layer.parameters(), lr=0.1)
        x, found = X.cuda().bfloat16(), []
        for _ in range(5):
            loss = (layer(x, causal=True) - x).float().square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            found.append(loss.item())
        return found

    first = losses()
    assert first == losses() and first[-1] < first[0]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_as_close_as_pytorchs_operators(dtype):
    here, there = (layer.to(dtype) for layer in layers())
    x = X.to(dtype)
    exact = torchs(here, x.double())
    error = (there(x.cuda(), causal=True).cpu().double() - exact).abs().max()
    assert error <= 2 * (torchs(there, x.cuda()).cpu().double() - exact).abs().max()


@torch.no_grad()
@pytest.mark.parametrize("rotary", [None, ROTARY])
def test_a_layer_is_captured_in_graphs(rotary):
    _, layer = layers(rotary=rotary)
    x = X.cuda()
    layer(x, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(x, causal=True)
    x.copy_(2 * X)
    graph.replay()
    assert torch.equal(found, layer(2 * X.cuda(), causal=True))


@torch.no_grad()
def test_a_step_of_an_optimiser_is_seen():
    _, layer = layers()
    before = layer(X.cuda(), causal=True)
    layer.k_proj.weight.mul_(2)
    layer.q_proj.weight.mul_(0.5)
    assert torch.equal(layer(X.cuda(), causal=True), before)
    layer.v_proj.weight.mul_(2)
    assert torch.equal(layer(X.cuda(), causal=True), 2 * before)


@torch.no_grad()
@pytest.mark.parametrize("of_cache", [{}, {"page_size": 16}, {"rotary": ROTARY}, {"rotary": ROTARY, "rotate_at": "read"}])
@pytest.mark.parametrize("rotary", [None, ROTARY])
def test_a_layer_over_a_cache_has_the_bits_of_the_cpu(rotary, of_cache):
    if rotary is None and "rotary" in of_cache:
        pytest.skip("keys are turned as queries are")
    here, there = layers(rotary=rotary)
    there.freeze()
    shape = {"batch": 2, "kv_heads": 2, "capacity": 64, "dim": 16} | of_cache
    caches = heed.KvCache(**shape), heed.KvCache(**shape, device="cuda")
    for part in (slice(0, 6), slice(6, 7), slice(7, 9)):
        wanted = here(X[:, part], cache=caches[0], causal=True)
        assert torch.equal(there(X[:, part].cuda(), cache=caches[1], causal=True).cpu(), wanted)
    wanted = here(X, cache=caches[0], causal=True, counts=[9, 4])
    assert torch.equal(there(X.cuda(), cache=caches[1], causal=True, counts=[9, 4]).cpu(), wanted)


@torch.no_grad()
def test_a_layer_over_a_cache_keeps_the_order_of_the_stream_that_is_current(side_stream):
    here, there = layers()
    there.freeze()
    caches = [heed.KvCache(batch=2, kv_heads=2, capacity=64, dim=16, device=device) for device in ("cpu", "cuda")]
    x = X.cuda(non_blocking=True)
    for part in (slice(0, 8), slice(8, 9)):
        found = there(x[:, part] + 1, cache=caches[1], causal=True).clone()
        wanted = here(X[:, part] + 1, cache=caches[0], causal=True)
        assert torch.equal(found.cpu(), wanted)
