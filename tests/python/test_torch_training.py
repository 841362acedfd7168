# SPDX-License-Identifier: Apache-2.0
"""heed.torch with gradients: autograd, torch.compile, autocast and checkpointing."""

import copy

import pytest

import heed

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import heed.torch  # noqa: E402

SHAPES = {
    "(heads, length, dim)": ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    "a batch": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "leading axes that broadcast": ((2, 1, 3, 5, 8), (4, 3, 7, 8), (1, 3, 7, 8)),
    "(length, dim)": ((5, 8), (7, 8), (7, 8)),
}


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(function, tensors, **options):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    out = function(*leaves, **options)
    out.backward(draw(*out.shape, seed=99, dtype=out.dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def close(ours, theirs, tolerance=2e-5):
    return all(
        a.dtype == b.dtype and torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_drop_in_has_the_gradients_of_torch(shapes, mask):
    tensors = [draw(*shape, seed=n) for n, shape in enumerate(SHAPES[shapes])]
    options = {"is_causal": mask == "causal", "scale": 0.3}
    if mask == "boolean":
        options["attn_mask"] = (draw(5, 7, seed=9) > -0.5) | torch.eye(5, 7, dtype=torch.bool)
    if mask == "additive":
        tensors.append(draw(5, 7, seed=9))
        options = {"scale": 0.3}
    assert close(gradients(heed.torch.scaled_dot_product_attention, tensors, **options),
                 gradients(F.scaled_dot_product_attention, tensors, **options))  # fmt: skip


@pytest.mark.parametrize("kv_heads", [(2, 2), (1, 1), (3, 2)])
def test_shared_heads_add_up_their_gradients(kv_heads):
    tensors = [draw(2, 6, 5, 8), draw(2, kv_heads[0], 7, 8, seed=1), draw(2, kv_heads[1], 7, 8, seed=2)]
    assert close(gradients(heed.torch.scaled_dot_product_attention, tensors, enable_gqa=True),
                 gradients(F.scaled_dot_product_attention, tensors, enable_gqa=True))  # fmt: skip


def test_gradients_of_masked_nan_are_zero_and_reach_nobody():
    q, k, v = draw(1, 2, 4, 8), draw(1, 2, 6, 8, seed=1), draw(1, 2, 6, 8, seed=2)
    k[:, :, 4:], v[:, :, 4:] = torch.nan, torch.nan
    keep = torch.arange(6) < 4
    _, dq, dk, dv = gradients(heed.torch.scaled_dot_product_attention, (q, k, v), attn_mask=keep.expand(4, 6))
    _, *short = gradients(heed.torch.scaled_dot_product_attention, (q, k[:, :, :4], v[:, :, :4]))
    assert (dk[:, :, 4:] == 0).all() and (dv[:, :, 4:] == 0).all()
    assert close([dq, dk[:, :, :4], dv[:, :, :4]], short)


@pytest.mark.parametrize("name", ["query", "key"])
def test_many_gradients_at_once_are_no_numbers_where_one_alone_is_none(name):
    tensors = [draw(1, 2, 5, 8, seed=1), draw(1, 2, 5, 8, seed=2), draw(1, 2, 5, 8, seed=3)]
    tensors[name == "key"][:, :, 2, 3] = torch.nan  # query 2 does not see keys 3 and 4, queries 0 and 1 do not see key 2
    tensors = [x.requires_grad_() for x in tensors]
    out = heed.torch.attention(*tensors, causal=True)
    many = draw(3, *out.shape, seed=4)
    pairs = at_once_and_alone(out, tensors, many)
    assert pairs[0][1].isnan().any() and not pairs[0][1].isnan().all()
    assert all(torch.allclose(at_once, alone, atol=2e-5, equal_nan=True) for at_once, alone in pairs)


def test_a_softcap_hides_nothing_that_is_hidden_from_gradients_of_weights():
    torch.manual_seed(1)
    layer, x = heed.torch.AttentionLayer(8, 2), draw(1, 3, 8, seed=1)

    def found(context):
        x_ = x.clone().requires_grad_()
        _, weights = layer(x_, context, key_lengths=[3], softcap=2.0, return_weights=True)
        return torch.autograd.grad(weights.square().sum(), x_)[0]

    context = draw(1, 4, 8, seed=2)
    planted = context.clone()
    planted[0, 3] = torch.nan
    assert torch.equal(found(planted), found(context)) and found(context).abs().sum() > 0


def at_once_and_alone(out, tensors, many):
    at_once = torch.autograd.grad(out, tensors, many, is_grads_batched=True, retain_graph=True)
    alone = zip(*(torch.autograd.grad(out, tensors, x, retain_graph=True) for x in many), strict=True)
    return list(zip(at_once, map(torch.stack, alone), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_gradients_of_a_faint_sink_are_those_of_one(dtype):
    tensors = [draw(1, 2, n, 16, seed=n, dtype=dtype) for n in (5, 64, 64)]
    sink = torch.full((2,), -8.0).requires_grad_()
    out = heed.torch.attention(*tensors, sink=sink)
    ((at_once, alone),) = at_once_and_alone(out, [sink], draw(3, *out.shape, seed=4, dtype=dtype))
    assert (at_once - alone).abs().max() <= 0.05 * alone.abs().max()


def test_many_gradients_of_rows_that_see_nothing_are_not_read():
    tensors = [draw(1, 2, 5, 8, seed=n).requires_grad_() for n in range(3)]
    keep = torch.ones(5, 5, dtype=torch.bool)
    keep[2] = False
    out = heed.torch.attention(*tensors, keep=keep)
    many = draw(3, *out.shape, seed=4)
    many[:, :, :, 2] = torch.nan
    for at_once, alone in at_once_and_alone(out, tensors, many):
        assert alone.isfinite().all() and torch.allclose(at_once, alone, atol=2e-5)


def test_many_gradients_beside_a_seen_infinity_under_a_softcap_are_those_of_one():
    tensors = [draw(1, 1, 4, 8, seed=n) for n in range(3)]
    tensors[1][0, 0, 2, 0] = torch.inf
    tensors = [x.requires_grad_() for x in tensors]
    out = heed.torch.attention(*tensors, softcap=2.0, causal=True)
    pairs = at_once_and_alone(out, tensors, draw(2, *out.shape, seed=4))
    assert pairs[0][1].isnan().any() and not pairs[0][1].isnan().all()
    assert all(torch.allclose(at_once, alone, atol=2e-5, equal_nan=True) for at_once, alone in pairs)


def test_gradients_lie_as_their_arguments_do():
    q, k, v = (torch.randn(2, 5, heads, 8).transpose(1, 2).requires_grad_() for heads in (4, 2, 2))
    out, _ = heed._torch_operators.attend(q, k, v, heed._torch_operators.Options())
    for gradient, argument in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v), strict=True):
        assert gradient.stride() == argument.stride()


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck_passes_on_the_reference():
    def attend(q, k, v, bias):
        return heed.torch.attention(q, k, v, bias=bias, causal="ends", kernel="reference")

    leaves = [draw(*shape, seed=n).requires_grad_() for n, shape in enumerate([(1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3), (4, 1, 5)])]
    torch.autograd.gradcheck(attend, leaves, eps=1e-2, atol=1e-3, rtol=1e-3, nondet_tol=0.0)


def test_the_operators_keep_the_rules_of_torch_library():
    q, k, v, bias = draw(1, 4, 3, 8), draw(1, 2, 5, 8, seed=1), draw(1, 2, 5, 8, seed=2), draw(1, 1, 3, 5, seed=3)
    for tensor in (q, k, v, bias):
        tensor.requires_grad_()
    options = heed._torch_operators.options_of({"bias": bias, "causal": "ends"})
    torch.library.opcheck(torch.ops.heed.attention.default, (q, k, v, *options))
    torch.library.opcheck(torch.ops.heed.attention_table.default, (q, k, v, *options, "weights"))


def test_a_compiled_function_traces_through_and_trains_alike():
    def loss(q, k, v, mask):
        return heed.torch.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask).sin().sum()

    tensors = [draw(1, 2, 5, 8), draw(1, 2, 7, 8, seed=1), draw(1, 2, 7, 8, seed=2), draw(5, 7, seed=3)]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert close(gradients_of_loss(compiled, tensors), gradients_of_loss(loss, tensors))


def test_options_may_be_numbers_that_the_compiler_knows_only_by_name():
    def drop_in(q, k, v):
        return heed.torch.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.25).sin().sum()

    def windowed(q, k, v):
        window = (q.shape[2] // 2, 0)
        return heed.torch.attention(q, k, v, causal="ends", window=window, softcap=float(q.shape[1])).sin().sum()

    for loss in (drop_in, windowed):
        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for length, dim in ((5, 8), (9, 12)):
            tensors = [draw(2, 3, length, dim, seed=n) for n in range(3)]
            assert close(gradients_of_loss(compiled, tensors), gradients_of_loss(loss, tensors))


def gradients_of_loss(loss, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    loss(*leaves).backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("rotary", [None, heed.Rotary()], ids=["plain", "rotary"])
def test_a_compiled_module_traces_through_with_dropout_and_rotary(rotary):
    layer = heed.torch.AttentionLayer(24, 4, 2, dropout=0.25, rotary=rotary)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, found = draw(2, 5, 24), []
    for module in (layer, compiled):
        layer.zero_grad()
        torch.manual_seed(3)
        module(x, causal=True).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert close(*found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_what_it_does_to_torchs_own(dtype):
    tensors = [draw(1, 2, 5, 8), draw(1, 2, 7, 8, seed=1), draw(1, 2, 7, 8, seed=2)]
    with torch.autocast("cpu", dtype):
        ours = gradients(heed.torch.scaled_dot_product_attention, tensors)
        theirs = gradients(F.scaled_dot_product_attention, tensors)
    assert [x.dtype for x in ours] == [dtype, *[torch.float32] * 3] and close(ours, theirs, 0.02)
    layer = heed.torch.AttentionLayer(24, 4)
    with torch.autocast("cpu", dtype):
        out = layer(draw(2, 5, 24))
    out.float().sum().backward()
    assert out.dtype == dtype and layer.q_proj.weight.grad.dtype == torch.float32


def attention_and_weights(q, k, v, bias, sink):
    """attention() of these, and a layer's output and weights, behind each other."""
    out = heed.torch.attention(q, k, v, bias=bias, sink=sink, causal="ends")
    layer = heed.torch.AttentionLayer(8, 2)
    return torch.cat([out.flatten(), *(x.flatten() for x in layer(q[:, 0], bias=bias, return_weights=True))])


def test_gradients_have_the_same_bits_whether_an_operator_is_seen_or_not():
    tensors = [draw(2, 4, 5, 8, seed=1), draw(2, 2, 5, 8, seed=2), draw(2, 2, 5, 6, seed=3), draw(1, 1, 5, 5, seed=4), draw(4, seed=5)]
    torch.manual_seed(6)
    plain = gradients(attention_and_weights, tensors)
    torch.manual_seed(6)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        seen = gradients(attention_and_weights, tensors)
    names = {event.name for event in profile.events()}
    assert {"heed::attention", "heed::attention_table", "heed::attention_backward"} <= names
    assert all(torch.equal(a, b) and a.abs().sum() > 0 for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize("name", ["cache", "sequences", "out", "return_weights", "return_scores"])
def test_what_has_no_gradient_is_refused_in_a_sentence(name):
    x = draw(1, 2, 5, 8)
    with pytest.raises(heed.KindError, match=f"^{name}: is no option here, where every result has a gradient; heed.attention takes it$"):
        heed.torch.attention(x, x, x, **{name: True})


def test_the_gradient_of_a_gradient_is_refused_in_a_sentence():
    q = draw(1, 2, 4, 8).requires_grad_()
    (dq,) = torch.autograd.grad(heed.torch.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^heed: the gradient of a gradient of attention \(double backward\) is not computed"):
        dq.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch, in its forward mode
def test_a_derivative_in_forward_mode_is_refused_in_a_sentence():
    x, layer = draw(1, 2, 5, 8), heed.torch.AttentionLayer(8, 2)
    calls = {
        "drop-in": lambda q: heed.torch.scaled_dot_product_attention(q, x, x),
        "attention": lambda q: heed.torch.attention(q, x, x),
        "module": lambda q: layer(q[0]),
    }
    for name, call in calls.items():
        with torch.no_grad(), forward_ad.dual_level():
            turned = forward_ad.make_dual(x, torch.ones_like(x))
            with pytest.raises(RuntimeError, match="heed: derivatives in forward mode"):
                raise AssertionError((name, call(turned)))


def test_dropout_repeats_with_the_seed_of_torch_and_through_a_checkpoint():
    tensors = [draw(1, 2, 9, 8, seed=n) for n in range(3)]

    def dropped(*qkv):
        return heed.torch.scaled_dot_product_attention(*qkv, dropout_p=0.5)

    def checkpointed(*qkv):
        return checkpoint(dropped, *qkv, use_reentrant=False)

    answers = []
    for seed, function in ((1, dropped), (1, checkpointed), (2, dropped)):
        torch.manual_seed(seed)
        answers.append(gradients(function, tensors))
    assert all(map(torch.equal, answers[0], answers[1]))
    assert not torch.equal(answers[0][1], answers[2][1])


@pytest.mark.parametrize("grad", [True, False])
def test_dropout_of_attention_that_is_given_no_seed_follows_the_seed_of_torch(grad):
    q, k, v = (draw(1, 2, 9, 8, seed=n).requires_grad_(grad) for n in range(3))
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append([heed.torch.attention(q, k, v, dropout=0.5) for _ in range(2)])
    assert all(map(torch.equal, answers[0], answers[1]))
    assert not torch.equal(answers[0][0], answers[2][0]) and not torch.equal(*answers[0])
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(answers[0][0], heed.torch.attention(q, k, v, dropout=0.5, seed=heed.torch.dropout_seed()))
    torch.set_rng_state(state)
    heed.torch.attention(q, k, v, dropout=0.5, seed=3)
    heed.torch.attention(q, k, v, dropout=0.0)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn that is not needed


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("draws", [False, True], ids=["no_seed", "dropout_seed"])
def test_dropout_of_attention_repeats_through_a_checkpoint_and_a_compiler(draws, is_compiled):
    tensors = [draw(1, 2, 9, 8, seed=n) for n in range(3)]

    def dropped(*qkv):
        return heed.torch.attention(*qkv, dropout=0.5, seed=heed.torch.dropout_seed() if draws else None)

    def checkpointed(*qkv):
        return checkpoint(dropped, *qkv, use_reentrant=False)

    torch._dynamo.reset()
    functions = [dropped, checkpointed]
    if is_compiled:
        functions += [torch.compile(function, fullgraph=True, backend="aot_eager") for function in functions]
    answers = []
    for function in functions:
        torch.manual_seed(5)
        answers.append([gradients(function, tensors) for _ in range(2)])
    for first, second in answers:
        assert all(map(torch.equal, first, answers[0][0])) and all(map(torch.equal, second, answers[0][1]))
        assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("kind", ["a number", "a number that was drawn"])
def test_a_seed_of_every_step_is_compiled_once(kind):
    """As many as there are steps: one program for each would end at the compiler's limit, where fullgraph gives up."""
    compiled_programs = []

    def keep(graph, _):
        compiled_programs.append(graph)
        return graph

    def dropped(q, seed):
        seed = seed if kind == "a number" else int(heed.torch.dropout_seed())
        return heed.torch.attention(q, q, q, dropout=0.5, seed=seed)

    torch._dynamo.reset()
    compiled, q = torch.compile(dropped, fullgraph=True, backend=keep), draw(1, 2, 9, 8)
    for step in range(12):
        answers = []
        for function in (dropped, compiled):
            torch.manual_seed(step)
            answers.append(function(q, step))
        assert torch.equal(*answers)
    assert len(compiled_programs) <= 4  # numbers that PyTorch makes constants first, 0 and 1 among them, and one for all others


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_seed_has_64_bits_as_a_number_and_as_a_tensor(seed):
    layer, x, q = heed.torch.AttentionLayer(16, 2, dropout=0.5), draw(2, 5, 16), draw(1, 2, 5, 8)
    given = [seed, torch.tensor(seed, dtype=torch.uint64)]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert torch.equal(*(layer(x, seed=one) for one in given))
            assert not torch.equal(layer(x, seed=seed), layer(x, seed=seed - 1))
            attended = [heed.torch.attention(q.requires_grad_(grad), q, q, dropout=0.5, seed=one) for one in given]
            assert torch.equal(*attended)
            assert torch.equal(attended[0], heed.attention(q.detach(), q.detach(), q.detach(), dropout=0.5, seed=seed))


@pytest.mark.parametrize("dropout", [float("nan"), -0.5, 1.5])
def test_a_dropout_that_is_set_to_no_probability_is_refused_at_the_call(dropout):
    layer, x = heed.torch.AttentionLayer(16, 2), draw(2, 5, 16)
    with pytest.raises(heed.Error, match="^dropout: ") as refused:
        heed.torch.AttentionLayer(16, 2, dropout=dropout)
    layer.dropout = dropout
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(heed.Error) as at_call:
            layer(x)
        assert str(at_call.value) == str(refused.value)


def multihead_like(layer, **widths):
    multihead = torch.nn.MultiheadAttention(24, 4, batch_first=True, **widths)
    names = {"q": "q_proj_weight", "k": "k_proj_weight", "v": "v_proj_weight"}
    with torch.no_grad():
        if multihead.in_proj_weight is not None:
            multihead.in_proj_weight.copy_(torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]))
        else:
            for letter, name in names.items():
                getattr(multihead, name).copy_(getattr(layer, f"{letter}_proj").weight)
        multihead.in_proj_bias.copy_(torch.cat([layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias]))
        multihead.out_proj.weight.copy_(layer.o_proj.weight)
        multihead.out_proj.bias.copy_(layer.o_proj.bias)
    return multihead


@pytest.mark.parametrize("widths", [{}, {"kdim": 20, "vdim": 28}], ids=["one width", "three widths"])
def test_the_module_has_the_gradients_of_multihead_attention(widths):
    layer = heed.torch.AttentionLayer(24, 4, bias=True, key_dim=widths.get("kdim"), value_dim=widths.get("vdim"))
    multihead = multihead_like(layer, **widths)
    x, context, value = draw(2, 5, 24), draw(2, 7, widths.get("kdim", 24), seed=1), draw(2, 7, widths.get("vdim", 24), seed=2)
    ours = gradients(lambda *inputs: layer(*inputs), (x, context, value))
    theirs = gradients(lambda *inputs: multihead(*inputs, need_weights=False)[0], (x, context, value))
    assert close(ours, theirs)
    in_proj = (
        multihead.in_proj_weight.grad.chunk(3)
        if not widths
        else [multihead.q_proj_weight.grad, multihead.k_proj_weight.grad, multihead.v_proj_weight.grad]
    )
    for letter, weight, bias in zip("qkv", in_proj, multihead.in_proj_bias.grad.chunk(3), strict=True):
        linear = getattr(layer, f"{letter}_proj")
        assert close([linear.weight.grad, linear.bias.grad], [weight, bias])
    assert close([layer.o_proj.weight.grad, layer.o_proj.bias.grad], [multihead.out_proj.weight.grad, multihead.out_proj.bias.grad])


@pytest.mark.parametrize("rotary", [
    heed.Rotary(), heed.Rotary(dims=4, pairs="adjacent"),
    heed.Rotary(scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}),
    heed.Rotary(scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}),
], ids=["halves", "adjacent", "dynamic", "yarn"])  # fmt: skip
def test_a_recorded_call_gives_what_a_call_without_gradients_gives(rotary):
    layer = heed.torch.AttentionLayer(24, 3, 1, rotary=rotary, bias=True)
    x, context = draw(2, 5, 24), draw(2, 7, 24, seed=1)
    calls = [((x,), {"causal": True}), ((x, context), {"key_lengths": [7, 3], "return_weights": True}),
             ((x,), {"positions": [[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]], "return_lse": True, "return_weights": "average"}),
             ((x[0],), {"window": (2, 0, "ends"), "return_scores": "biased"})]  # fmt: skip
    for arrays, options in calls:
        recorded = layer(*arrays, **options)
        with torch.no_grad():
            plain = layer(*arrays, **options)
        recorded, plain = ([x] if isinstance(x, torch.Tensor) else x for x in (recorded, plain))
        assert recorded[0].requires_grad and [x.shape for x in recorded] == [x.shape for x in plain]
        assert close(recorded, plain)


def test_a_cache_is_refused_where_gradients_are_recorded():
    layer = heed.torch.AttentionLayer(24, 4)
    cache = heed.KvCache(batch=1, kv_heads=4, capacity=8, dim=6)
    with pytest.raises(RuntimeError, match=r"^cache: has no gradient; call the layer under torch.no_grad"):
        layer(draw(1, 3, 24), cache=cache, causal=True)


def test_a_step_of_an_optimiser_is_seen_with_and_without_gradients():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.01)
    x = draw(2, 5, 24)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = layer(x, causal=True).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        with torch.no_grad():
            assert close([layer(x, causal=True)], [copy.deepcopy(layer)(x, causal=True)])
    assert losses[0] > losses[1] > losses[2]
