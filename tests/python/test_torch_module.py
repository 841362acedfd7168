# SPDX-License-Identifier: Apache-2.0
"""heed.torch: the drop-in and the module, beside PyTorch's own."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import heed.torch  # noqa: E402

F = torch.nn.functional


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def agrees(ours, theirs, truth, roundings=1):
    """FlashAttention's rule: at most twice the error of theirs, measured by float64, and a rounding of the largest number."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    error, of_theirs = ((x.double() - truth).abs().max().item() for x in (ours, theirs))
    return error <= 2 * of_theirs + roundings * torch.finfo(ours.dtype).eps * truth.abs().max().item()


def agrees_with_torch(ours, qkv, **options):
    """As a result of the drop-in, with PyTorch's own."""
    in_double = {n: o.double() if torch.is_tensor(o) and o.is_floating_point() else o for n, o in options.items()}
    theirs = F.scaled_dot_product_attention(*qkv, **options)
    return agrees(ours, theirs, F.scaled_dot_product_attention(*(x.double() for x in qkv), **in_double))


SHAPES = {
    "two axes": ((5, 8), (7, 8), (7, 6)),
    "three axes": ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    "four axes": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    "five axes": ((2, 2, 3, 5, 8), (2, 1, 3, 7, 8), (1, 2, 3, 7, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_drop_in_gives_what_torch_gives(shapes, mask, dtype):
    q, k, v = (draw(*shape, seed=n, dtype=dtype) for n, shape in enumerate(SHAPES[shapes]))
    options = {"is_causal": mask == "causal", "scale": 0.3}
    if mask == "boolean":
        options["attn_mask"] = (draw(5, 7, seed=9) > -0.5) | torch.eye(5, 7, dtype=torch.bool)
    elif mask == "additive":
        options["attn_mask"] = draw(5, 7, seed=9, dtype=dtype)
    ours = heed.torch.scaled_dot_product_attention(q, k, v, **options)
    assert agrees_with_torch(ours, (q, k, v), **options)


def test_the_drop_in_shares_heads_when_asked():
    q, k, v = draw(2, 6, 5, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    ours = heed.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert agrees_with_torch(ours, (q, k, v), enable_gqa=True)


def test_the_drop_in_follows_autocast():
    q, k, v = draw(1, 2, 5, 8), draw(1, 2, 7, 8, seed=1), draw(1, 2, 7, 8, seed=2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours = heed.torch.scaled_dot_product_attention(q, k, v)
        assert F.scaled_dot_product_attention(q, k, v).dtype == ours.dtype == torch.bfloat16
    assert agrees_with_torch(ours, [x.bfloat16() for x in (q, k, v)])


@pytest.mark.parametrize("shapes", SHAPES)
def test_dropout_of_the_drop_in_repeats_with_the_seed_of_torch(shapes):
    q, k, v = (draw(*shape, seed=n) for n, shape in enumerate(SHAPES[shapes]))
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append(heed.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True))
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])
    assert answers[0].shape == F.scaled_dot_product_attention(q, k, v).shape


def test_dropout_keeps_what_masks_and_shared_heads_mean():
    q, k, v = draw(2, 6, 5, 8), draw(2, 2, 7, 8, seed=1), torch.ones(2, 2, 7, 8)
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[1:, 0] = True
    out = heed.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.25, enable_gqa=True)
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])  # one key: dropped or scaled
    assert (out[:, :, 0] == 0).all()


def module_like(multihead):
    return heed.torch.AttentionLayer(
        multihead.embed_dim, multihead.num_heads, key_dim=multihead.kdim, value_dim=multihead.vdim,
        bias=multihead.in_proj_bias is not None,
    )  # fmt: skip


@pytest.mark.parametrize("widths", [{}, {"kdim": 20, "vdim": 28}], ids=["one width", "three widths"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_multihead_checkpoint_loads_and_gives_what_torch_gives(bias, widths):
    multihead = torch.nn.MultiheadAttention(24, 4, bias=bias, batch_first=True, **widths).eval()
    with torch.no_grad():
        for n, parameter in enumerate(multihead.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=n))
    layer = module_like(multihead)
    assert not any(layer.load_state_dict(multihead.state_dict()))
    x, context, value = draw(2, 5, 24), draw(2, 7, widths.get("kdim", 24)), draw(2, 7, widths.get("vdim", 24))
    hidden = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    with torch.no_grad():
        theirs = multihead(x, context, value, key_padding_mask=hidden)
        ours = layer(x, context, value, key_lengths=[7, 4], return_weights="average")
        truth = multihead.double()(x.double(), context.double(), value.double(), key_padding_mask=hidden)
    assert all(agrees(*each, roundings=4) for each in zip(ours, theirs, truth, strict=True))  # as docs/conformance.md has it


@pytest.mark.parametrize("names", ["{}_proj.weight", "W_{}.weight"])
def test_the_names_of_llama_and_of_the_seeds_load(names):
    made = heed.torch.AttentionLayer(24, 4, 2)
    state = {names.format(letter): draw(*made.get_submodule(f"{letter}_proj").weight.shape) for letter in "qkvo"}
    assert not any(made.load_state_dict(state))
    assert list(made.state_dict()) == ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"]
    assert all(torch.equal(made.get_submodule(f"{c}_proj").weight, state[names.format(c)]) for c in "qkvo")


def test_names_load_below_a_prefix_too():
    class Block(torch.nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

    multihead = torch.nn.MultiheadAttention(24, 4)
    ours = Block(module_like(multihead))
    assert not any(ours.load_state_dict(Block(multihead).state_dict()))
    assert torch.equal(ours.attention.o_proj.weight, multihead.out_proj.weight)


def test_a_checkpoint_that_does_not_fit_is_refused():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    with pytest.raises(RuntimeError, match="in_proj_weight: its 72 rows are not the 48 of q, k and v"):
        layer.load_state_dict(torch.nn.MultiheadAttention(24, 4, bias=False).state_dict())
    layer = heed.torch.AttentionLayer(24, 4, bias=True)
    with pytest.raises(RuntimeError, match="bias_k: heed's layer has no extra key and value"):
        layer.load_state_dict(torch.nn.MultiheadAttention(24, 4, add_bias_kv=True).state_dict())


def by_hand(layer, x):
    """The layer by PyTorch's own operations, causal."""
    batch, length, _ = x.shape
    q, k, v = (
        layer.get_submodule(f"{c}_proj")(x).view(batch, length, -1, 6).transpose(1, 2) for c in "qkv"
    )
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return layer.o_proj(out.transpose(1, 2).flatten(2))


def agrees_with_operations(ours, layer, x):
    with torch.no_grad():
        return agrees(ours, by_hand(layer, x), by_hand(copy.deepcopy(layer).double(), x.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, "qkv", True])
def test_the_module_is_projections_around_attention(bias, dtype):
    layer = heed.torch.AttentionLayer(24, 4, 2, bias=bias, dtype=dtype)
    x = draw(2, 5, 24, dtype=dtype)
    with torch.inference_mode():
        ours = layer(x, causal=True)
    assert agrees_with_operations(ours, layer, x)


CHANGES = {
    "an optimiser's step": lambda layer: layer.k_proj.weight.add_(1),
    "loading": lambda layer: layer.load_state_dict({n: t + 1 for n, t in layer.state_dict().items()}),
    "another dtype": lambda layer: layer.to(torch.bfloat16),
    "a parameter's memory": lambda layer: setattr(layer.q_proj.weight, "data", layer.q_proj.weight.data + 1),
    "a parameter": lambda layer: setattr(layer.v_proj, "weight", torch.nn.Parameter(layer.v_proj.weight + 1)),
    "around autograd": lambda layer: layer.o_proj.weight.data.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_changes_the_answer(change):
    layer, x = heed.torch.AttentionLayer(24, 4, 2), draw(2, 5, 24)
    with torch.no_grad():
        before = layer(x, causal=True)
        assert torch.equal(before, layer(x, causal=True))
        CHANGES[change](layer)
        x = x.to(layer.q_proj.weight.dtype)
        after = layer(x, causal=True)
        assert agrees_with_operations(after, layer, x) and not torch.equal(before.to(after.dtype), after)


class Halved(torch.nn.Module):
    """A parametrisation."""

    def forward(self, weight):
        return weight / 2


def tie(layer):
    layer.k_proj.weight = layer.v_proj.weight


def tie_modules(layer):
    layer.k_proj = layer.v_proj


def parametrise(layer):
    for linear in (layer.q_proj, layer.o_proj):
        torch.nn.utils.parametrize.register_parametrization(linear, "weight", Halved())
    torch.nn.utils.parametrizations.weight_norm(layer.k_proj)
    torch.nn.utils.parametrizations.orthogonal(layer.v_proj)
    torch.nn.utils.parametrize.register_parametrization(layer.q_proj, "bias", Halved())


ARRANGED = {"tied weights": tie, "tied modules": tie_modules, "parametrised": parametrise}


@pytest.mark.parametrize("arranged", ARRANGED)
def test_the_module_takes_weights_that_are_tied_or_computed(arranged):
    layer, x = heed.torch.AttentionLayer(24, 4, 2, bias=True), draw(2, 5, 24)
    ARRANGED[arranged](layer)
    with torch.no_grad():
        before = layer(x, causal=True)
        assert agrees_with_operations(before, layer, x)
        for parameter in layer.parameters():
            parameter.add_(draw(*parameter.shape, seed=7))
        after = layer(x, causal=True)
        assert agrees_with_operations(after, layer, x) and not torch.equal(before, after)
        assert torch.equal(after, layer(x, causal=True))
    recorded = layer(x, causal=True)
    recorded.sum().backward()
    assert agrees_with_operations(recorded.detach(), layer, x)
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_dropout_of_the_module_applies_in_training_only():
    layer, x = heed.torch.AttentionLayer(24, 4, dropout=0.5), draw(1, 5, 24)
    answers = []
    with torch.no_grad():
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            answers.append(layer(x))
        calm = [layer.eval()(x), layer(x)]
    assert torch.equal(answers[0], answers[1]) and not torch.equal(answers[0], answers[2])
    assert torch.equal(*calm) and not torch.equal(calm[0], answers[0])


def test_a_module_is_copied_and_saved_whole():
    rotary = heed.Rotary(scaling={"rope_type": "linear", "factor": 4.0})
    layer, x = heed.torch.AttentionLayer(24, 4, 2, rotary=rotary), draw(1, 5, 24)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded, copied = torch.load(file, weights_only=False), copy.deepcopy(layer)
    with torch.no_grad():
        answer = layer(x)
        assert torch.equal(loaded(x), answer) and torch.equal(copied(x), answer)
        copied.q_proj.weight.zero_()
        assert torch.equal(layer(x), answer) and not torch.equal(copied(x), answer)
