# SPDX-License-Identifier: Apache-2.0
"""heed.torch where its users step off the path: shares of heads, masks without memory, PyTorch's words, exporters, odd arguments."""

import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812

import heed  # noqa: E402
import heed.torch  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention

def narrowed():
    torch.manual_seed(0)
    layer = heed.torch.AttentionLayer(16, 4, 2)          # head_dim 4
    # What ColwiseParallel/RowwiseParallel over 2 ranks, or pruned heads, leave of the projections.
    layer.q_proj, layer.k_proj = nn.Linear(16, 8, bias=False), nn.Linear(16, 4, bias=False)
    layer.v_proj, layer.o_proj = nn.Linear(16, 4, bias=False), nn.Linear(8, 16, bias=False)
    return layer

def test_narrowed_projections_are_right_or_refused():
    layer, x = narrowed(), torch.randn(2, 5, 16)
    heads = lambda y: y.unflatten(-1, (-1, 4)).transpose(1, 2)
    q, k, v = (heads(p(x)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    right = layer.o_proj(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))
    try:
        y = layer(x)
    except (RuntimeError, ValueError):
        return
    torch.testing.assert_close(y, right)

@pytest.mark.parametrize("name, mask", [
    ("keep", torch.ones(4, 4, dtype=torch.bool, device="meta")), ("hide", torch.zeros(4, 4, dtype=torch.bool, device="meta")),
    ("key_lengths", torch.tensor([3, 4], device="meta")), ("document", torch.zeros(2, 4, dtype=torch.long, device="meta")),
    ("alibi", torch.ones(2, device="meta"))])
def test_meta_option_is_refused(name, mask):
    q = torch.randn(2, 2, 4, 8)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        heed.torch.attention(q, q, q, **{name: mask})

def test_meta_bool_mask_of_the_drop_in_is_refused():
    q = torch.randn(2, 2, 4, 8)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        sdpa(q, q, q, torch.ones(4, 4, dtype=torch.bool, device="meta"))

def test_meta_mask_of_the_layer_is_refused():
    layer = heed.torch.AttentionLayer(16, 2)
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError, TypeError)):
        layer(torch.randn(2, 5, 16), keep=torch.ones(5, 5, dtype=torch.bool, device="meta"))

def test_scale_that_requires_grad_is_not_dropped():
    q, scale = torch.randn(1, 2, 4, 8), torch.tensor(0.3, requires_grad=True)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        assert not sdpa(q, q, q, scale=scale).requires_grad
        # reached: the gradient was dropped without a word

def test_jagged_as_pytorch_does():
    q = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 5)], layout=torch.jagged)
    k, v = (torch.nested.nested_tensor_from_jagged(torch.randn(8, 2, 8), q.offsets()) for _ in "kv")
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    right = F.scaled_dot_product_attention(q, k, v)
    for a, b in zip(sdpa(q, k, v).unbind(), right.unbind()):
        torch.testing.assert_close(a, b)

def test_put_in_the_place_of_pytorchs(monkeypatch):
    q = torch.randn(1, 2, 4, 8, dtype=torch.float64)
    right = F.scaled_dot_product_attention(q, q, q)
    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), right)

def test_fx_symbolic_trace():
    class Model(nn.Module):
        def forward(self, q):
            return sdpa(q, q, q)
    q = torch.randn(1, 2, 4, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(Model())(q), F.scaled_dot_product_attention(q, q, q))

def test_duck_with_torch_function():
    class Duck:
        def __init__(self, t): self.t = t
        @classmethod
        def __torch_function__(cls, f, types, args=(), kwargs=None):
            bare = lambda x: x.t if isinstance(x, Duck) else x
            return Duck(f(*map(bare, args), **{n: bare(x) for n, x in (kwargs or {}).items()}))
    q = torch.randn(1, 2, 4, 8)
    assert isinstance(sdpa(Duck(q), Duck(q), Duck(q)), Duck)

class Heads(nn.Module):
    def forward(self, x):
        y = x.unflatten(-1, (4, 4)).transpose(1, 2)
        return sdpa(y, y, y, is_causal=True)

class OneLayer(nn.Module):
    def __init__(self, **choices):
        super().__init__()
        self.layer = heed.torch.AttentionLayer(16, 4, 2, **choices)
    def forward(self, x):
        return self.layer(x, causal=True)

@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Heads(), OneLayer(), OneLayer(rotary=heed.Rotary())], ids=["drop-in", "layer", "rotary"])
def test_onnx_of_the_old_exporter_with_dynamic_axes(model, tmp_path):
    from onnx.reference import ReferenceEvaluator
    model, path = model.eval(), str(tmp_path / "m.onnx")
    torch.onnx.export(model, (torch.randn(2, 5, 16),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "b", 1: "t"}})
    for x in (torch.randn(2, 5, 16), torch.randn(3, 9, 16), torch.randn(2, 1, 16)):
        torch.testing.assert_close(torch.from_numpy(ReferenceEvaluator(path).run(None, {"x": x.numpy()})[0]), model(x).detach())

def test_onnx_of_the_new_exporter_with_rotary(tmp_path):
    from onnx.reference import ReferenceEvaluator
    model, path, x = OneLayer(rotary=heed.Rotary()).eval(), str(tmp_path / "m.onnx"), torch.randn(2, 5, 16)
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, input_names=["x"])
    torch.testing.assert_close(torch.from_numpy(ReferenceEvaluator(path).run(None, {"x": x.numpy()})[0]), model(x).detach())

def test_deep_copy_of_a_heed_cache():
    import heed.transformers
    from transformers import LlamaConfig
    cache = heed.transformers.HeedCache(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16, max_position_embeddings=32))
    cache.update(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), 0)
    other = copy.deepcopy(cache)
    cache.update(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8), 0)
    assert (cache.get_seq_length(), other.get_seq_length()) == (4, 3)

@pytest.mark.parametrize("grad", [False, True])
def test_words_of_pytorch_for_mask_and_is_causal(grad):
    q = torch.randn(1, 2, 4, 8, requires_grad=grad)                                # 12 tests of test_transformers.py match this
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
        sdpa(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True)

def test_words_of_pytorch_for_causal_bias_and_is_causal():
    from torch.nn.attention.bias import causal_upper_left
    q = torch.randn(1, 2, 4, 8)                                                    # TestAttnBias.test_is_causal_and_mask_fails
    with pytest.raises(ValueError, match="CausalBias should not be used with causal=True"):
        sdpa(q, q, q, causal_upper_left(4, 4), is_causal=True)

@pytest.mark.parametrize("query", [[1.0], None, 1.5], ids=["list", "None", "float"])
def test_query_that_is_no_tensor_has_a_sentence(query):
    k = torch.randn(1, 2, 4, 8)
    with pytest.raises(heed.KindError, match="query"):
        sdpa(query, k, k)

@pytest.mark.parametrize("x", [np.zeros((2, 5, 16), "f4"), [1.0], None], ids=["numpy", "list", "None"])
def test_layer_with_no_tensor_has_a_sentence_or_works(x):
    layer = heed.torch.AttentionLayer(16, 2)
    with torch.no_grad():
        try:
            layer(x)
        except (heed.KindError, heed.Error) as error:
            assert "x" in str(error)

@pytest.mark.parametrize("where", ["x", "positions"])
def test_layer_refuses_nested_in_its_own_words(where):
    layer, x = heed.torch.AttentionLayer(16, 2, rotary=heed.Rotary()), torch.randn(2, 5, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.nested.nested_tensor([torch.arange(5), torch.arange(5)] if where == "positions" else list(x))
    with torch.no_grad(), pytest.raises(Exception, match=where + ".*nested"):
        layer(given) if where == "x" else layer(x, positions=given)

def test_trace_of_a_layer_has_no_needless_warning():
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        torch.jit.trace(OneLayer().eval(), torch.randn(2, 5, 16))

@pytest.mark.parametrize("grad", [False, True])
def test_strides_are_pytorchs_for_a_query_stored_by_columns(grad):
    q = torch.randn(2, 2, 8, 4).transpose(-1, -2).requires_grad_(grad)
    k = torch.randn(2, 2, 4, 8)
    assert sdpa(q, k, k).stride() == F.scaled_dot_product_attention(q, k, k).stride()

@pytest.mark.parametrize("grad", [False, True])
def test_dropout_p_none_is_refused_as_pytorch_refuses_it(grad):
    q = torch.randn(1, 2, 4, 8, requires_grad=grad)
    with pytest.raises(TypeError):
        sdpa(q, q, q, None, None)

@pytest.mark.parametrize("given, name", [(dict(key=torch.float16), "key"), (dict(attn_mask=torch.float16), "attn_mask")])
def test_sentences_of_the_drop_in_name_its_arguments(given, name):
    arrays = {n: torch.randn(1, 2, 4, 8).to(given.get(n, torch.float32)) for n in ("query", "key", "value")}
    if "attn_mask" in given: arrays["attn_mask"] = torch.randn(4, 4).half()
    with pytest.raises(Exception, match=f"^{name}"):
        sdpa(**arrays)


def plain_drop_in(shape=(2, 4, 5, 8), dtype=torch.float32, **changed):
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    given = {"query": q, "key": k, "value": v, "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    return given | changed


@pytest.mark.parametrize("changed", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"key": torch.randn(2, 2, 5, 8), "value": torch.randn(2, 2, 5, 8), "enable_gqa": True},
    {"query": torch.randn(2, 5, 4, 8, requires_grad=True).transpose(1, 2)}, {"value": torch.randn(2, 4, 5, 3, requires_grad=True)}])
def test_a_plain_call_that_autograd_records_goes_past_the_dispatcher_with_the_bits_of_the_long_way(changed):
    given = plain_drop_in(**changed)
    assert heed._heed.is_plain_drop_in(**given)
    leaves = [given[name] for name in ("query", "key", "value") if given[name].requires_grad]
    found = {}
    for name, run in (("short", sdpa), ("long", heed._torch_drop_in.observed)):
        out = run(**given)
        found[name] = [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]
    for short, long in zip(found["short"], found["long"], strict=True):
        assert torch.equal(short, long) and short.stride() == long.stride()


@pytest.mark.parametrize("changed", [
    {"attn_mask": torch.ones(5, 5, dtype=torch.bool)}, {"dropout_p": 0.1}, {"is_causal": None}, {"scale": torch.tensor(0.3)},
    {"scale": 1}, {"query": torch.randn(4, 5, 8)}, {"query": torch.randn(2, 4, 5, 9)}, {"key": torch.randn(2, 4, 6, 8)},
    {"key": torch.randn(2, 2, 5, 8), "value": torch.randn(2, 2, 5, 8)}, {"key": torch.randn(1, 4, 5, 8)},
    {"query": torch.randn(2, 4, 5, 8, dtype=torch.float64)}, {"query": torch.randn(2, 4, 5, 8, device="meta")}, {"query": None},
    {"query": torch.randn(2, 4, 0, 8)}, {"value": torch.randn(2, 1, 5, 8)}, {"query": torch.randn(2, 4, 5, 8).to_sparse()},
    {"key": torch.randn(2, 3, 5, 8), "value": torch.randn(2, 3, 5, 8), "enable_gqa": True}])
def test_a_call_with_anything_to_refuse_broadcast_or_draw_takes_the_long_way(changed):
    assert not heed._heed.is_plain_drop_in(**plain_drop_in(**changed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_has_its_type_on_the_short_way_too(dtype):
    given = plain_drop_in(dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        out = sdpa(**given)
        assert out.dtype == torch.bfloat16 and out.requires_grad
        assert torch.equal(out, heed._torch_drop_in.observed(**given))
