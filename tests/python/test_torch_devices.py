# SPDX-License-Identifier: Apache-2.0
"""heed.torch and heed.transformers by the device of their tensors, as far as it can be told without a CUDA device: fake tensors
say that they lie there, and meta tensors lie nowhere."""

import pytest

import heed

torch = pytest.importorskip("torch")
import heed.torch  # noqa: E402
from heed import _torch_tensors  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

HAS_CUDA = any(name.startswith("cuda.") for name in heed.kernel_names())
without_cuda = pytest.mark.skipif(HAS_CUDA, reason="a build with CUDA")


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def heads(count=4, device="cuda", dtype=torch.bfloat16, **how):
    return torch.empty(2, count, 5, 8, device=device, dtype=dtype, **how)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_compiler_is_told_where_results_lie(fake, device):
    q, k = heads(device=device), heads(2, device=device)
    out, lse = heed.torch.attention(q, k, k, causal=True, return_lse=True)
    assert (out.device, out.dtype, out.shape) == (q.device, q.dtype, q.shape)
    assert out.stride() == q.stride()  # as PyTorch's has it
    assert (lse.device, lse.dtype, lse.shape) == (q.device, torch.float32, q.shape[:3])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_without_memory_gets_a_shape(fake, device):
    q = heads(device=device)
    out = heed.torch.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert (out.device, out.shape) == (q.device, q.shape)


@pytest.mark.parametrize("rotary", [None, heed.Rotary()])
def test_a_layer_on_the_meta_device_tells_shapes(rotary):
    layer = heed.torch.AttentionLayer(model_dim=32, heads=4, kv_heads=2, rotary=rotary, device="meta")
    out = layer(torch.empty(3, 7, 32, device="meta"), causal=True)
    assert out.is_meta and out.shape == (3, 7, 32)


def test_counted_positions_of_fake_tensors_are_not_those_of_others():
    layer = heed.torch.AttentionLayer(model_dim=32, heads=4, rotary=heed.Rotary())
    with FakeTensorMode() as mode, torch.no_grad():
        mode.allow_non_fake_inputs = True
        layer(torch.empty(1, 6, 32), causal=True)
    assert torch.isfinite(layer(torch.ones(1, 6, 32), causal=True)).all()


def test_autocast_is_that_of_the_tensors_device(fake):
    q = heads(device="cpu", dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert heed.torch.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16
        assert heed.torch.scaled_dot_product_attention(*[q.to("meta")] * 3).dtype == torch.float32
        assert _torch_tensors.is_autocast(q) and not _torch_tensors.is_autocast(heads())


@without_cuda
@pytest.mark.parametrize(
    "call",
    [
        lambda: heed.KvCache(batch=1, kv_heads=1, capacity=16, dim=8, device="cuda"),
        lambda: heed.AttentionLayer(model_dim=32, heads=4, device="cuda"),
    ],
    ids=["cache", "layer"],
)
def test_a_build_without_cuda_says_so(call):
    with pytest.raises(heed.Error, match="device: cuda"):
        call()


def test_a_layers_device_is_one_of_two_words():
    with pytest.raises(heed.Error, match='device: "tpu" is none of "cpu", "cuda"'):
        heed.AttentionLayer(model_dim=32, heads=4, device="tpu")
    assert heed.AttentionLayer(model_dim=32, heads=4).device == "cpu"
