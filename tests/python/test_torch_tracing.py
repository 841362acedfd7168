# SPDX-License-Identifier: Apache-2.0
"""What tracers, exporters and compilers make of heed.torch answers for other inputs than it was made with."""

import io
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import heed.torch  # noqa: E402

F = torch.nn.functional


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drop_in(q, k, v):
    return heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(torch.nn.Module):
    """A layer with a rotary embedding, and the drop-in with a mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = heed.torch.AttentionLayer(24, 4, 2, bias=True, rotary=heed.Rotary())

    def forward(self, x):
        y = self.layer(x, causal=True)
        heads = y.unflatten(-1, (4, 6)).transpose(1, 2)
        return heed.torch.scaled_dot_product_attention(heads, heads, heads, attn_mask=x[:, :1, None, :1].expand(-1, -1, x.shape[1], x.shape[1]))


def inputs(seed, length=5):
    return draw(2, length, 24, seed=seed)


def eager(x):
    with torch.no_grad():
        return Block()(x)


def agrees(found, x):
    return torch.allclose(found, eager(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_a_trace_answers_for_other_inputs(records):
    with torch.set_grad_enabled(records), warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        q, k, v = (draw(1, 2, 5, 8, seed=n) for n in range(3))
        traced = torch.jit.trace(drop_in, (q, k, v))
        others = [draw(2, 3, 7, 8, seed=n) for n in range(4, 7)]
        assert torch.allclose(traced(*others), F.scaled_dot_product_attention(*others, is_causal=True), atol=1e-5)
    with torch.set_grad_enabled(records):
        assert agrees(torch.jit.trace(Block(), inputs(1))(inputs(2)), inputs(2))


def test_a_trace_is_saved_and_loaded():
    file = io.BytesIO()
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(Block(), inputs(1)), file)
        file.seek(0)
        assert agrees(torch.jit.load(file)(inputs(2)), inputs(2))


def test_a_script_is_PyTorchs_own(monkeypatch):
    def by_name(q):
        return heed.torch.scaled_dot_product_attention(q, q, q, is_causal=True)

    def in_its_place(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = draw(1, 2, 5, 8)
    right = drop_in(q, q, q)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", heed.torch.scaled_dot_product_attention)
    for function in (by_name, in_its_place):
        assert torch.allclose(torch.jit.script(function)(q), right, atol=1e-5)


@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_an_operator(mode, records):
    with torch.set_grad_enabled(records):
        graph = make_fx(drop_in, tracing_mode=mode)(*(draw(1, 2, 5, 8, seed=n) for n in range(3)))
        assert any("heed.attention" in str(node.target) for node in graph.graph.nodes)
        others = [draw(1, 2, 5, 8, seed=n) for n in range(4, 7)]
        assert torch.allclose(graph(*others), drop_in(*others), atol=1e-6)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("call", ["drop-in", "attention", "layer"])
def test_make_fx_draws_what_is_dropped_at_every_run(call, mode):
    if call == "layer" and mode != "real":
        pytest.skip("its parameters are no fake tensors")
    layer = heed.torch.AttentionLayer(8, 2, dropout=0.5)
    dropped = {
        "drop-in": lambda q: heed.torch.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        "attention": lambda q: heed.torch.attention(q, q, q, dropout=0.5),
        "layer": lambda q: layer(q[0]),
    }[call]
    q = draw(1, 2, 5, 8)
    graph = make_fx(dropped, tracing_mode=mode)(q)
    answers = []
    for function in (graph, dropped):
        torch.manual_seed(1)
        answers.append([function(q) for _ in range(2)])
    assert all(map(torch.allclose, *answers)) and not torch.equal(*answers[0])


def test_aot_function_without_gradients_sees_an_operator():
    from functorch.compile import aot_function

    found = []
    compiled = aot_function(drop_in, fw_compiler=lambda graph, _: found.append(graph) or graph)
    q, k, v = (draw(1, 2, 5, 8, seed=n) for n in range(3))
    assert torch.allclose(compiled(q, k, v), drop_in(q, k, v))
    assert any("heed.attention" in str(node.target) for node in found[0].graph.nodes)


def test_export_answers_for_other_inputs():
    exported = torch.export.export(Block().eval(), (inputs(1),)).module()
    with torch.no_grad():
        assert agrees(exported(inputs(2)), inputs(2))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_module_answers_for_other_inputs(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(Block(), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (5, 5, 7, 9):
        with torch.no_grad():
            assert agrees(compiled(inputs(length, length)), inputs(length, length))
        assert agrees(compiled(inputs(length, length)).detach(), inputs(length, length))


class Small(torch.nn.Module):
    """Nothing that Inductor would have to compile: a layer and the drop-in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = heed.torch.AttentionLayer(24, 4, 2)

    def forward(self, x):
        heads = self.layer(x, causal=True).unflatten(-1, (4, 6)).transpose(1, 2)
        return heed.torch.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


@pytest.fixture
def compiled_in_less_time():
    """PyTorch's own C++ without its headers compiled in advance, a trial of every instruction set, and optimisation."""
    settings = {"cpp_cache_precompile_headers": False, "aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0", "cpp.vec_isa_ok": True}
    with torch._inductor.config.patch(settings):
        yield


@pytest.mark.usefixtures("compiled_in_less_time")
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"dynamic": True}], ids=["default", "reduce-overhead", "dynamic"])
def test_what_inductor_makes_answers_for_other_inputs(options):
    torch.compiler.reset()
    model = Small()
    compiled = torch.compile(model, fullgraph=True, **options)
    for length in (5, 5, 7):
        x = inputs(length, length).requires_grad_()
        with torch.no_grad():
            assert torch.allclose(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    found, right = (torch.autograd.grad(call(x).square().sum(), [x, *model.parameters()]) for call in (compiled, model))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, right, strict=True))


@pytest.mark.usefixtures("compiled_in_less_time")
def test_a_package_of_aotinductor_answers_for_other_inputs(tmp_path):
    model, length = Small().eval(), torch.export.Dim("length", min=2, max=64)
    with torch.no_grad():
        exported = torch.export.export(model, (inputs(1),), dynamic_shapes={"x": {1: length}})
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
        loaded = torch._inductor.aoti_load_package(path)
        for tokens in (5, 9, 20):
            assert torch.allclose(loaded(inputs(2, tokens)), model(inputs(2, tokens)), rtol=1e-5, atol=1e-5)


def test_checkpointing_computes_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    gradients = []
    for call in (lambda block, x: block(x), lambda block, x: checkpoint(block, x, use_reentrant=False)):
        x, block = inputs(1).requires_grad_(), Block()
        call(block, x).square().sum().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in block.parameters())])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("dynamo", [False, True], ids=["by tracing", "by torch.export"])
@pytest.mark.filterwarnings("ignore")
def test_an_onnx_model_has_inputs_and_answers_for_others(dynamo):
    onnx = pytest.importorskip("onnx")
    if dynamo:
        pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    file = io.BytesIO()
    with torch.no_grad():
        if dynamo:
            torch.onnx.export(Block().eval(), (inputs(1),), dynamo=True, verbose=False).save(file)
        else:
            torch.onnx.export(Block().eval(), (inputs(1),), file, dynamo=False, input_names=["x"], opset_version=17)
    model = onnx.load_from_string(file.getvalue())
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx", "pkg.onnxscript.torch_lib"}
    found, *_ = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: inputs(2).numpy()})
    assert np.allclose(found, eager(inputs(2)).numpy(), rtol=1e-4, atol=1e-4)


def test_a_mode_sees_an_operator():
    seen = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    q = draw(1, 2, 5, 8)
    with torch.no_grad(), Listening():
        heed.torch.scaled_dot_product_attention(q, q, q)
        heed.torch.attention(q, q, q)
    assert seen.count("heed.attention.default") == 2


def test_a_mode_for_functions_sees_the_drop_in():
    seen = []

    class Listening(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            seen.append(function)
            return function(*arguments, **(keywords or {}))

    q = draw(1, 2, 5, 8)
    with torch.no_grad(), Listening():
        heed.torch.scaled_dot_product_attention(q, q, q)
    assert heed.torch.scaled_dot_product_attention in seen


def test_the_profiler_sees_an_operator():
    q = draw(1, 2, 5, 8)
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        heed.torch.scaled_dot_product_attention(q, q, q)
    assert "heed::attention" in {event.key for event in profile.key_averages()}


def test_the_short_way_gives_the_bits_of_the_operator():
    q, k, v = draw(2, 4, 5, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 8, seed=2)
    short = heed.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    recorded = heed.torch.scaled_dot_product_attention(q.requires_grad_(), k, v, enable_gqa=True)
    assert torch.equal(short, recorded) and short.stride() == recorded.stride()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3)])
@pytest.mark.parametrize("records", [False, True], ids=["no_grad", "autograd"])
def test_results_have_the_strides_of_PyTorchs(order, records):
    back = tuple(np.argsort(order))
    q, k, v = (draw(*(torch.Size((2, 3, 5, 8))[n] for n in order), seed=n).permute(back) for n in range(3))
    with torch.set_grad_enabled(records):
        ours = heed.torch.scaled_dot_product_attention(q.requires_grad_(records), k, v)
        assert ours.stride() == F.scaled_dot_product_attention(q, k, v).stride()
