# SPDX-License-Identifier: Apache-2.0
"""heed.torch.AttentionLayer answers with its parameters as they are at that moment, whatever changed them, and whoever listens."""

import copy
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.utils.prune  # noqa: E402

from two_ranks import found_by_two_ranks  # noqa: E402

import heed  # noqa: E402
import heed.torch  # noqa: E402

F = torch.nn.functional
X = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))


def by_hand(layer, x):
    """The layer by PyTorch's own operations, causal, in float64, over the weights that its projections have now."""
    batch, length, _ = x.shape
    heads = []
    for name in ("q_proj", "k_proj", "v_proj"):
        linear = layer.get_submodule(name)
        bias = None if linear.bias is None else linear.bias.detach().double()
        heads.append(F.linear(x.double(), linear.weight.detach().double(), bias).view(batch, length, -1, 6).transpose(1, 2))
    out = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
    bias = None if layer.o_proj.bias is None else layer.o_proj.bias.detach().double()
    return F.linear(out, layer.o_proj.weight.detach().double(), bias)


def step(make, closure=False, **options):
    def change(layer):
        optimizer = make(layer.parameters(), lr=0.5, **options)

        def loss():
            optimizer.zero_grad()
            total = layer(X, causal=True).square().sum()
            total.backward()
            return total

        with torch.enable_grad():
            loss()
            optimizer.step(loss) if closure else optimizer.step()

    return change


def swap_average(layer):
    average = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    average.update_parameters(layer)
    layer.load_state_dict(average.module.state_dict())


def assign(layer):
    state = {name: tensor + 1 for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)


def set_vector(layer):
    vector = torch.nn.utils.parameters_to_vector(layer.parameters())
    torch.nn.utils.vector_to_parameters(vector.detach() * 2, layer.parameters())


def write_by_numpy(layer):
    layer.k_proj.weight.detach().numpy()[:] *= 3


def write_by_out(layer):
    """heed's own out=, into a weight: (24, 24) as one head of 24 queries."""
    with torch.no_grad():
        q = torch.randn(1, 1, 24, 24)
        heed.attention(q, q, q, out=layer.q_proj.weight.detach()[None, None])


def transpose(layer):
    layer.q_proj.weight = torch.nn.Parameter(layer.q_proj.weight.detach().t())


def parametrise(layer):
    class Scaled(torch.nn.Module):
        factor = 1.0

        def forward(self, weight):
            return weight * self.factor

    scaled = Scaled()
    torch.nn.utils.parametrize.register_parametrization(layer.v_proj, "weight", scaled)
    with torch.no_grad():
        layer(X, causal=True)
    scaled.factor = 2.0


def write_from_another_thread(layer):
    layer.share_memory()
    thread = threading.Thread(target=lambda: layer.v_proj.weight.data.mul_(2))
    thread.start()
    thread.join()


def _double(tensor):
    tensor.data.mul_(2)


def write_from_another_process(layer):
    layer.o_proj.weight.share_memory_()
    process = torch.multiprocessing.get_context("fork").Process(target=_double, args=(layer.o_proj.weight,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def compiled_step(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    with torch.enable_grad():
        layer(X, causal=True).square().sum().backward()
        torch.compile(optimizer.step, backend="eager")()


CHANGES = {
    "SGD": step(torch.optim.SGD),
    "SGD, foreach": step(torch.optim.SGD, foreach=True),
    "SGD, fused": step(torch.optim.SGD, fused=True),
    "Adam": step(torch.optim.Adam),
    "Adam, fused": step(torch.optim.Adam, fused=True),
    "AdamW, foreach": step(torch.optim.AdamW, foreach=True),
    "AdamW, fused": step(torch.optim.AdamW, fused=True),
    "Adagrad, fused": step(torch.optim.Adagrad, fused=True),
    "Adafactor": step(torch.optim.Adafactor),
    "RMSprop": step(torch.optim.RMSprop),
    "LBFGS": step(torch.optim.LBFGS, closure=True, max_iter=2),
    "a compiled step": compiled_step,
    "an average of weights": swap_average,
    "load_state_dict": lambda layer: layer.load_state_dict({name: t + 1 for name, t in layer.state_dict().items()}),
    "load_state_dict, assigned": assign,
    "vector_to_parameters": set_vector,
    "copy_": lambda layer: layer.k_proj.weight.detach().copy_(torch.eye(12, 24)),
    "data.copy_": lambda layer: layer.k_proj.weight.data.copy_(torch.eye(12, 24)),
    "data": lambda layer: setattr(layer.q_proj.weight, "data", layer.q_proj.weight.data + 1),
    "a NumPy view": write_by_numpy,
    "heed's out=": write_by_out,
    "a new parameter": lambda layer: setattr(layer.v_proj, "weight", torch.nn.Parameter(layer.v_proj.weight.detach() + 1)),
    "a transposed view": transpose,
    "a parametrisation": parametrise,
    "pruning": lambda layer: torch.nn.utils.prune.l1_unstructured(layer.k_proj, "weight", amount=0.5),
    "weight_norm": lambda layer: torch.nn.utils.parametrizations.weight_norm(layer.k_proj),
    "another thread": write_from_another_thread,
    "another process": write_from_another_process,
    "no bias of the output": lambda layer: setattr(layer.o_proj, "bias", None),
    "a bias less": lambda layer: setattr(layer.k_proj, "bias", None),
    "swap_tensors": lambda layer: torch.utils.swap_tensors(layer.q_proj.weight, torch.nn.Parameter(torch.eye(24))),
}


def quietly(layer, x):
    with torch.no_grad():
        return layer(x, causal=True)


def in_inference_mode(layer, x):
    with torch.inference_mode():
        return layer(x, causal=True).clone()


def recorded(layer, x):
    return layer(x.clone().requires_grad_(), causal=True).detach()


def compiled(layer, x):
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(lambda z: layer(z, causal=True), backend="eager")(x)


CALLS = (quietly, in_inference_mode, recorded)




@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES)
def test_the_answer_is_that_of_the_parameters_at_that_moment(change):
    torch.manual_seed(3)
    layer = heed.torch.AttentionLayer(24, 4, 2, bias=True)
    for call in CALLS:
        call(layer, X)  # so that whatever could be kept is there
    before = quietly(layer, X)
    CHANGES[change](layer)
    truth = by_hand(layer, X)
    scale = max(1.0, truth.abs().max().item())
    for call in (*CALLS, compiled):
        error = (call(layer, X).double() - truth).abs().max().item()
        assert error <= 256 * torch.finfo(torch.float32).eps * scale, (call.__name__, error)
    if change not in ("weight_norm",):
        assert not torch.allclose(quietly(layer, X), before), "nothing has changed"


@pytest.mark.parametrize("call", [quietly, recorded])
def test_functional_call_answers_with_the_weights_it_is_given(call):
    layer = heed.torch.AttentionLayer(24, 4, 2)
    other = heed.torch.AttentionLayer(24, 4, 2)
    other.load_state_dict({name: tensor * 2 for name, tensor in layer.state_dict().items()})
    found = call(lambda x, **options: torch.func.functional_call(layer, other.state_dict(), (x,), options), X)
    assert torch.allclose(found, quietly(other, X), rtol=1e-5, atol=1e-5)


def test_dropout_that_is_set_later_applies():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    layer.dropout = 0.5
    with torch.no_grad():
        assert not torch.equal(layer(X), layer(X))
        layer.eval()
        assert torch.equal(layer(X), layer(X))


def test_hooks_of_a_projection_run_and_may_change_what_it_gives():
    layer, seen = heed.torch.AttentionLayer(24, 4, 2), []
    layer.v_proj.register_forward_hook(lambda module, inputs, output: seen.append(1) or output * 2)
    doubled = quietly(layer, X)
    layer.v_proj._forward_hooks.clear()
    assert seen and torch.allclose(doubled, 2 * quietly(layer, X), rtol=1e-5, atol=1e-6)


def test_a_forward_of_its_own_is_called():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    plain = quietly(layer, X)
    linear = layer.o_proj
    linear.forward = lambda x: F.linear(x, linear.weight, linear.bias) + 1
    assert torch.allclose(quietly(layer, X), plain + 1, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("patched", ["nn.Linear.forward", "F.linear"])
@pytest.mark.parametrize("listens", ["nobody", "autograd", "autocast"])
def test_a_patch_of_every_linear_is_called_for_all_four_projections(patched, listens, monkeypatch):
    layer, of_pytorch = heed.torch.AttentionLayer(24, 4, 2), torch.nn.MultiheadAttention(24, 4)
    calls, linear, forward = [], F.linear, torch.nn.Linear.forward
    if patched == "F.linear":
        monkeypatch.setattr(F, "linear", lambda *a: calls.append(1) or linear(*a))
    else:
        monkeypatch.setattr(torch.nn.Linear, "forward", lambda *a: calls.append(1) or forward(*a))
    with torch.set_grad_enabled(listens == "autograd"), torch.autocast("cpu", torch.bfloat16, enabled=listens == "autocast"):
        layer(X, causal=True)
    assert len(calls) == 4
    with pytest.raises(RuntimeError, match=f"must be a plain nn.Linear, and {patched} is patched"):
        layer.freeze()
    if patched == "F.linear":
        calls.clear()
        of_pytorch(X, X, X)
        expected = len(calls)
        with heed.torch.activated():
            of_pytorch(X, X, X)
        assert len(calls) == 2 * expected > 0


def mixed(layer, changed, x, context, value):
    layer = copy.deepcopy(layer)
    for name in changed:
        layer.get_submodule(name).to(torch.bfloat16)
    sentences = []
    for records in (False, True):
        with torch.set_grad_enabled(records), pytest.raises(heed.KindError) as refused:
            layer(x, context, value)
        sentences.append(str(refused.value))
    assert sentences[0] == sentences[1]
    return sentences[0]


def test_inputs_of_another_type_than_the_weights_are_refused_with_and_without_gradients():
    layer, half = heed.torch.AttentionLayer(24, 4, 2), X.bfloat16()
    every = ["q_proj", "k_proj", "v_proj", "o_proj"]
    refused = "bfloat16; give both one type, or use torch.autocast"
    assert mixed(layer, every, X, None, None) == f"x.dtype: float32 is not that of q_proj.weight: {refused}"
    assert mixed(layer, every[3:], X, X, X) == f"x.dtype: float32 is not that of o_proj.weight: {refused}"
    assert mixed(layer, [], half, None, None).startswith("x.dtype: bfloat16 is not that of q_proj.weight: float32; give both one type")
    assert mixed(layer, [], X, half, None).startswith("context.dtype: bfloat16 is not that of k_proj.weight: float32")
    assert mixed(layer, [], X, X, half).startswith("value.dtype: bfloat16 is not that of v_proj.weight: float32")
    for records in (False, True):
        with torch.set_grad_enabled(records), torch.autocast("cpu", torch.bfloat16):
            assert layer(X).dtype == layer(half).dtype == torch.bfloat16


def test_offloaded_weights_are_brought_by_who_offloaded_them():
    accelerate = pytest.importorskip("accelerate")
    layer = heed.torch.AttentionLayer(24, 4, 2)
    plain = quietly(layer, X)
    accelerate.cpu_offload(layer, execution_device=torch.device("cpu"))
    assert torch.allclose(quietly(layer, X), plain, rtol=1e-5, atol=1e-6)


def test_an_adapter_is_attached_trained_and_merged():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = torch.nn.Sequential(heed.torch.AttentionLayer(24, 4, 2))
    plain = quietly(model[0], X)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    layer = adapted.base_model.model[0]
    attached = quietly(layer, X)
    assert not torch.allclose(attached, plain)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    layer(X, causal=True).square().sum().backward()
    optimizer.step()
    trained = quietly(layer, X)
    assert not torch.allclose(trained, attached)
    merged = adapted.merge_and_unload()[0]
    assert type(merged.q_proj) is torch.nn.Linear and torch.allclose(quietly(merged, X), trained, rtol=1e-4, atol=1e-5)


def test_a_frozen_layer_answers_with_the_same_bits_and_has_nothing_to_change():
    layer = heed.torch.AttentionLayer(24, 4, 2, bias=True, rotary=heed.Rotary())
    plain = quietly(layer, X)
    assert layer.freeze() is layer and "frozen" in repr(layer)
    assert torch.equal(quietly(layer, X), plain) and not list(layer.parameters())
    for what, change in {
        "train": layer.train,
        "load_state_dict": lambda: layer.load_state_dict({}),
        "state_dict": layer.state_dict,
        "to": lambda: layer.to(torch.bfloat16),
        "requires_grad_": layer.requires_grad_,
    }.items():
        with pytest.raises(RuntimeError, match=f"{what}.*the layer is frozen"):
            change()
    with pytest.raises(AttributeError, match="^q_proj: the layer is frozen"):
        layer.q_proj  # noqa: B018
    with pytest.raises(RuntimeError, match="^heed: a frozen layer is called under torch.no_grad"):
        layer(X.clone().requires_grad_())
    assert torch.equal(quietly(layer.eval(), X), plain)


def test_what_is_more_than_linear_is_not_frozen():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    layer.k_proj.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match=r"^freeze\(\): k_proj must be a plain nn.Linear, and it has hooks"):
        layer.freeze()


def test_a_layer_with_a_cache_reads_its_parameters_too():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    with torch.no_grad():
        layer.o_proj.weight.data.mul_(2)
        cache = heed.KvCache(2, 2, 16, 6)
        in_pieces = torch.cat([layer(X[:, n : n + 1], cache=cache, causal=True) for n in range(5)], 1)
        assert torch.equal(in_pieces, layer(X, causal=True))
    layer.q_proj.register_forward_hook(lambda *_: None)
    with torch.no_grad(), pytest.raises(RuntimeError, match="^cache: q_proj must be a plain nn.Linear for it, and it has hooks"):
        layer(X, cache=cache)


def test_threads_that_call_one_module_while_it_changes_get_whole_answers():
    layer = heed.torch.AttentionLayer(24, 4, 2)
    first = quietly(layer, X)
    problems = []

    def call():
        for _ in range(200):
            layer.refresh()
            if not torch.equal(quietly(layer, X), first):
                problems.append("another answer")

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_what_heed_writes_raises_the_version():
    q = torch.randn(1, 2, 5, 8)
    buffer = torch.empty(1, 2, 5, 8)
    weight = torch.ones(1, 2, 5, 8, requires_grad=True)
    loss = (weight * heed.attention(q, q, q, out=buffer)).sum()
    heed.attention(q, q, q * 2, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_backward_reads_again_is_what_was_read_before():
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    keep = np.tril(np.ones((4, 4), bool))
    out = heed.torch.attention(q, q, q, keep=keep)
    keep[:] = False
    found, = torch.autograd.grad(out.sum(), q)
    wanted, = torch.autograd.grad(heed.torch.attention(q, q, q, causal=True).sum(), q)
    assert torch.equal(found, wanted)
    mask = torch.ones(4, 4, dtype=torch.bool)
    out = heed.torch.attention(q, q, q, keep=mask)
    mask.fill_(False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def _of_ranks(rank, path, results):
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    wrong = []

    def check(what, model, layer):
        reference = heed.torch.AttentionLayer(24, 4, 2)
        reference.load_state_dict(layer)
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                found = model(X, causal=True)
            error = (found.detach().double() - by_hand(reference, X)).abs().max().item()
            if not error < 1e-4:
                wrong.append((what, mode.__name__, error))

    def make():
        torch.manual_seed(rank)
        return heed.torch.AttentionLayer(24, 4, 2)

    layer = make()
    quietly(layer, X)
    for parameter in layer.parameters():
        dist.broadcast(parameter.data, 0)
    check("broadcast", layer, layer.state_dict())
    with torch.no_grad():
        for parameter in layer.parameters():
            dist.all_reduce(parameter)
    check("all_reduce", layer, layer.state_dict())
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X, causal=True).square().sum().backward()
    optimizer.step()
    check("DDP", model, model.module.state_dict())

    def train(model):
        quietly(model, X)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(X, causal=True).square().sum().backward()
            optimizer.step()

    torch.manual_seed(5)
    sharded = fully_shard(heed.torch.AttentionLayer(24, 4, 2))
    train(sharded)
    check("FSDP2", sharded, {name: tensor.full_tensor() for name, tensor in sharded.state_dict().items()})
    torch.manual_seed(5)
    wrapped = FullyShardedDataParallel(heed.torch.AttentionLayer(24, 4, 2), use_orig_params=True, device_id=torch.device("cpu"))
    train(wrapped)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        state = {name.removeprefix("_fsdp_wrapped_module."): p.detach().clone() for name, p in wrapped.named_parameters()}
    check("FSDP1", wrapped, state)
    results.put((rank, wrong))
    dist.barrier()
    dist.destroy_process_group()


def test_weights_that_ranks_share_count_at_once(tmp_path):
    assert found_by_two_ranks(_of_ranks, tmp_path) == {0: [], 1: []}
