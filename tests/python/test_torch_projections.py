# SPDX-License-Identifier: Apache-2.0
"""heed.torch.AttentionLayer's projections of one x, whose gradients are made together where nobody could tell."""

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

import heed.torch  # noqa: E402
from heed import _torch_projections  # noqa: E402


@pytest.fixture
def together(monkeypatch):
    """How often projections were made together."""
    calls, apply = [], _torch_projections.Projections.apply
    monkeypatch.setattr(_torch_projections.Projections, "apply", lambda *given: calls.append(1) or apply(*given))
    return calls


def layer_of(**choices):
    torch.manual_seed(3)
    return heed.torch.AttentionLayer(24, 4, 2, **choices)


def gradients(layer, x, call=None):
    layer.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    out = (call or layer)(x, causal=True)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype))
    return [out.detach(), x.grad, *(weight.grad for weight in layer.parameters())]


def one_by_one(layer, x):
    """The same with projections that must be called."""
    handles = [getattr(layer, f"{letter}_proj").register_forward_hook(lambda *_: None) for letter in "qkv"]
    found = gradients(layer, x)
    for handle in handles:
        handle.remove()
    return found


def assert_near(ours, theirs, tolerance=2e-5):
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rotary", [None, heed.Rotary()], ids=["plain", "rotary"])
@pytest.mark.parametrize("bias", [False, "qkv", True])
@pytest.mark.parametrize("shape", [(2, 5, 24), (5, 24), (1, 1, 24)])
def test_gradients_made_together_are_those_of_each_projection(together, bias, rotary, shape):
    layer, x = layer_of(bias=bias, rotary=rotary), torch.randn(shape).requires_grad_()
    assert_near(gradients(layer, x), one_by_one(layer, x))
    assert len(together) == 1


def test_gradients_of_weights_are_one_product_unless_they_are_rotated(monkeypatch):
    seen, joined = [], _torch_projections._joined
    monkeypatch.setattr(_torch_projections, "_joined", lambda parts: seen.append((parts, joined(parts))) or seen[-1][1])
    x = torch.randn(2, 5, 24).requires_grad_()
    gradients(layer_of(), x)
    gradients(layer_of(rotary=heed.Rotary()), x)
    ((parts, matrix),) = seen
    assert matrix.shape == (10, 48)
    assert matrix.data_ptr() == parts[0].data_ptr()


def test_columns_are_copied_only_where_they_do_not_lie_side_by_side():
    matrix = torch.arange(60.0).view(5, 12)
    q, k, v = matrix.split([6, 3, 3], -1)
    with torch.no_grad():
        assert _torch_projections._joined([q, k, v]).data_ptr() == matrix.data_ptr()
        assert torch.equal(_torch_projections._joined([q, k, v]), matrix)
        for parts in ([q, v, k], [k, v, q], [q, k, v.clone()], [q.clone(), k.clone(), v.clone()], [matrix.t(), matrix.t()]):
            assert torch.equal(_torch_projections._joined(parts), torch.cat(parts, -1))


@pytest.mark.parametrize("rotary", [None, heed.Rotary()], ids=["plain", "rotary"])
def test_who_listens_changes_no_bit_of_a_gradient(together, rotary):
    class Listener(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, given=(), named=None):
            return function(*given, **(named or {}))

    layer, x = layer_of(bias=True, rotary=rotary), torch.randn(2, 5, 24).requires_grad_()
    plain = gradients(layer, x)
    with Listener():
        assert_near(gradients(layer, x), plain, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert_near(gradients(layer, x), plain, 0)
    assert len(together) == 3


@pytest.mark.parametrize("frozen", ["x", "q_proj", "k_proj", "v_proj", "x and o_proj"])
def test_what_wants_no_gradient_has_none(frozen):
    layer, x = layer_of(bias=True), torch.randn(2, 5, 24).requires_grad_("x" not in frozen)
    for name, module in layer.named_children():
        module.requires_grad_(name not in frozen)
    ours = gradients(layer, x)
    assert_near(ours, one_by_one(layer, x))
    assert ours[1] is None or "x" not in frozen


def test_attention_is_not_asked_for_gradients_that_nobody_wants(together):
    layer, x = layer_of(), torch.randn(2, 5, 24)
    layer.q_proj.requires_grad_(False)
    gradients(layer, x)
    assert not together  # q would have wanted one


def test_whoever_listens_to_a_projection_is_told(together):
    layer, x, told = layer_of(), torch.randn(2, 5, 24).requires_grad_(), []
    layer.k_proj.register_full_backward_hook(lambda *_: told.append(1))
    gradients(layer, x)
    assert told
    with torch.autocast("cpu", torch.bfloat16):
        gradients(layer_of(), x)
    layer_of()(x, torch.randn(2, 7, 24)).sum().backward()
    assert not together


def test_a_checkpoint_and_two_calls_give_the_same_sums(together):
    layer, x = layer_of(bias=True), torch.randn(2, 5, 24).requires_grad_()
    assert_near(gradients(layer, x), gradients(layer, x, lambda y, **options: checkpoint(layer, y, use_reentrant=False, **options)), 0)
    once = gradients(layer, x)
    twice = gradients(layer, x, lambda y, **options: layer(y, **options) + layer(y, **options))
    assert_near([2 * y for y in once], twice)
    assert len(together) >= 5


def test_many_gradients_at_once_are_those_of_each():
    layer, x = layer_of(), torch.randn(1, 3, 24).requires_grad_()
    out, leaves = layer(x, causal=True), (x, *layer.parameters())
    by = torch.randn(2, *out.shape)
    many = torch.autograd.grad(out, leaves, by, retain_graph=True, is_grads_batched=True)
    for n in range(2):
        assert_near([y[n] for y in many], torch.autograd.grad(out, leaves, by[n], retain_graph=True))


def test_a_weight_that_changed_after_the_call_is_refused():
    layer, x = layer_of(), torch.randn(2, 5, 24).requires_grad_()
    out = layer(x)
    with torch.no_grad():
        layer.k_proj.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
