# SPDX-License-Identifier: Apache-2.0
"""heed.transformers by the device of a model's tensors, as far as it can be told without a CUDA device."""

import pytest
import test_transformers as small

torch = small.torch

import heed  # noqa: E402
from heed._transformers_cache import HeedCacheLayer  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

HAS_CUDA = any(name.startswith("cuda.") for name in heed.kernel_names())


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def states(**how):
    return torch.empty(2, 4, 6, 8, device="cuda", **how)


def test_a_mask_known_by_its_pattern_lies_where_the_model_asks():
    mask = heed.transformers.make_mask(2, 3, 9, q_offset=4, device="meta")
    assert isinstance(mask, heed.transformers.SeenKeys) and mask.is_meta
    assert mask.dense().is_meta and (mask + 0).is_meta
    assert not heed.transformers.make_mask(2, 3, 9, q_offset=4).is_meta


def test_attention_of_a_model_on_cuda_has_its_device(fake):
    out, _ = heed.transformers.attend(torch.nn.Module(), states(), states(), states(), None)
    assert out.device.type == "cuda" and out.shape == (2, 6, 4, 8)


@pytest.mark.skipif(HAS_CUDA, reason="a build with CUDA")
def test_the_cache_of_a_model_on_cuda_lies_there(fake, monkeypatch):
    monkeypatch.setattr(heed._transformers_cache._torch_tensors, "beside_caches", lambda _: torch.no_grad())
    layer = HeedCacheLayer(capacity=16)
    with pytest.raises(heed.Error, match="device: cuda, but this build has no CUDA backend"):
        layer.update(states(), states())
    assert not layer.is_initialized
