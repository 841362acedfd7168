# SPDX-License-Identifier: Apache-2.0
"""Training over heed.torch on a CUDA device, in a build with CUDA: what PyTorch's users put around a layer changes no gradient."""

import copy

import pytest
import test_transformers as small
from test_cuda import random, torch
from torch.utils.checkpoint import checkpoint
from two_ranks import found_by_two_ranks

import heed
import heed.torch

X = random(2, 40, 64, seed=7)


def make_layer(dtype=torch.bfloat16):
    torch.manual_seed(3)
    return heed.torch.AttentionLayer(model_dim=64, heads=4, kv_heads=2, rotary=heed.Rotary(base=500.0)).to("cuda", dtype)


def trained(layer, x, run=None):
    """The output, and the gradients by x and by every parameter."""
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    out = (run or layer)(x)
    out.float().square().mean().backward()
    return [out.detach(), x.grad, *(p.grad for p in layer.parameters())]


def causal(layer):
    return lambda x: layer(x, causal=True)


def equal(these, those):
    return all(torch.equal(a, b) and a.abs().sum() > 0 for a, b in zip(these, those, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_bit(dtype, reentrant):
    layer, x = make_layer(dtype), X.to("cuda", dtype)
    again = trained(layer, x, lambda x: checkpoint(causal(layer), x, use_reentrant=reentrant))
    assert equal(trained(layer, x, causal(layer)), again)


def test_autocast_has_gradients_of_the_parameters_type():
    layer, x = make_layer(torch.float32), X.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x, causal=True)
    out.float().square().mean().backward()
    assert out.dtype == torch.bfloat16 and all(p.grad.dtype == torch.float32 and p.grad.abs().sum() > 0 for p in layer.parameters())


def test_the_whole_step_is_captured_in_a_graph():
    layer, x = make_layer(), X.cuda().bfloat16()
    wanted = trained(layer, 2 * x, causal(layer))
    still = x.clone().requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        trained(layer, x, causal(layer))
    torch.cuda.current_stream().wait_stream(side)
    layer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(still, causal=True)
        out.float().square().mean().backward()
    for _ in range(2):
        with torch.no_grad():
            still.copy_(2 * x)
            for p in (still, *layer.parameters()):
                p.grad.zero_()
        graph.replay()
        assert equal([out, still.grad, *(p.grad for p in layer.parameters())], wanted)


def test_the_default_compiler_traces_the_whole_step():
    layer, x = make_layer(torch.float32), X.cuda()
    compiled = torch.compile(causal(layer), fullgraph=True)
    for a, b in zip(trained(layer, x, compiled), trained(layer, x, causal(layer)), strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@small.each_decoder
def test_models_train_to_the_same_bits_twice(family):
    ids, mask = (x.cuda() for x in small.tokens(9, 3))

    def curve():
        model = copy.deepcopy(small.decoder(family, "bf16").heed).cuda().train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(4):
            logits = model(ids, attention_mask=mask).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first = curve()
        assert first == curve() and first[-1] < first[0]
    finally:
        torch.use_deterministic_algorithms(False)


def _of_ranks(rank, path, results):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    layer = make_layer(torch.float32)
    model = DistributedDataParallel(layer, device_ids=[0])
    model(X[rank : rank + 1].cuda(), causal=True).square().mean().backward()
    results.put((rank, [p.grad.cpu().numpy() for p in layer.parameters()]))
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_on_one_card_have_the_mean_of_their_gradients(tmp_path):
    found = found_by_two_ranks(_of_ranks, tmp_path)
    alone = []
    for rank in range(2):
        layer = make_layer(torch.float32)
        layer(X[rank : rank + 1].cuda(), causal=True).square().mean().backward()
        alone.append([p.grad for p in layer.parameters()])
    for ours, theirs, a, b in zip(found[0], found[1], *alone, strict=True):
        assert (ours == theirs).all() and torch.equal(torch.from_numpy(ours), (a / 2 + b / 2).cpu())
