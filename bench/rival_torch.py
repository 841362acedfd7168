# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a rival: scaled_dot_product_attention, and nn.Linear around it for the layer."""

import numpy as np
import torch
import torch.nn.functional as F
from problem import in_turn

TORCH_TYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensor(problem, array):
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))).to(TORCH_TYPE[problem.dtype])


def timed(function):
    def run():
        with torch.inference_mode():
            return function()

    return run


def repeated(tensors, groups):
    return [t.repeat_interleave(groups, dim=1) for t in tensors]


def attention_ways(problem, arrays):
    batch, heads, kv_heads, queries, _, dim = problem.shape
    q, k, v = (tensor(problem, arrays[name]) for name in ("q", "k", "v"))
    options = {"is_causal": problem.causal}
    if not problem.is_grouped:
        yield "sdpa", lambda: F.scaled_dot_product_attention(q, k, v, **options)
        return
    groups = heads // kv_heads
    yield "sdpa enable_gqa", lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    yield "sdpa repeat_interleave", lambda: F.scaled_dot_product_attention(
        q, *repeated((k, v), groups), **options
    )


def backward_ways(problem, arrays):
    """The gradients by q, k and v of a forward pass that is over; what comes out is the one by q."""
    q, k, v = (tensor(problem, arrays[name]).requires_grad_() for name in ("q", "k", "v"))
    out_gradient = tensor(problem, arrays["out_gradient"])
    forms = {"sdpa backward": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=problem.causal)}
    if problem.is_grouped:
        groups = problem.shape[1] // problem.shape[2]
        forms = {
            "sdpa enable_gqa backward": lambda: F.scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, enable_gqa=True
            ),
            "sdpa repeat_interleave backward": lambda: F.scaled_dot_product_attention(
                q, *repeated((k, v), groups), is_causal=problem.causal
            ),
        }
    for name, forward in forms.items():
        out = forward()
        yield name, lambda out=out: torch.autograd.grad(out, (q, k, v), out_gradient, retain_graph=True)[0]


def regrouped_ways(problem, arrays, _threads):
    """The heads of a group as queries of one head: what a user who knows the trick writes for a decode step."""
    batch, heads, kv_heads, queries, _, dim = problem.shape if problem.role == "decode" else [1] * 6
    if problem.role != "decode" or not problem.is_grouped:
        return
    q, k, v = (tensor(problem, arrays[name]) for name in ("q", "k", "v"))

    def run():
        grouped = q.view(batch, kv_heads, heads // kv_heads, dim)
        return F.scaled_dot_product_attention(grouped, k, v).view(batch, heads, queries, dim)

    yield "sdpa, heads as queries", timed(run)


class Layer(torch.nn.Module):
    """Four bias-free linear maps around grouped-query attention."""

    def __init__(self, problem, arrays, shares, trains=False):
        super().__init__()
        self.extents, self.shares = problem.shape, shares
        for name in ("w_q", "w_k", "w_v", "w_o"):
            matrix = tensor(problem, arrays[name])
            linear = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, dtype=matrix.dtype)
            linear.weight = torch.nn.Parameter(matrix, requires_grad=trains)
            setattr(self, name, linear)

    def forward(self, x):
        batch, heads, kv_heads, queries, _, dim = self.extents
        q = self.w_q(x).view(batch, queries, heads, dim).transpose(1, 2)
        k, v = (
            linear(x).view(batch, queries, kv_heads, dim).transpose(1, 2) for linear in (self.w_k, self.w_v)
        )
        if heads == kv_heads:
            out = F.scaled_dot_product_attention(q, k, v)
        elif self.shares:
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        else:
            out = F.scaled_dot_product_attention(q, *repeated((k, v), heads // kv_heads))
        return self.w_o(out.transpose(1, 2).reshape(batch, queries, -1))


def layer_ways(problem, arrays):
    x = tensor(problem, arrays["x"])
    shared = Layer(problem, arrays, shares=True)
    yield "Linear, sdpa", lambda: shared(x)
    if problem.is_grouped:
        copied = Layer(problem, arrays, shares=False)
        yield "Linear, sdpa repeat_interleave", lambda: copied(x)


def there_and_back(layer, problem, arrays):
    """A run of a module, and of its gradients by x and the parameters; what comes out is the one by x."""
    x = tensor(problem, arrays["x"]).requires_grad_()
    out_gradient = tensor(problem, arrays["out_gradient"])
    return lambda: torch.autograd.grad(layer(x), (x, *layer.parameters()), out_gradient)[0]


def training_ways(problem, arrays):
    for shares in (True, False) if problem.is_grouped else (True,):
        layer = Layer(problem, arrays, shares, trains=True)
        name = "Linear, sdpa" if shares else "Linear, sdpa repeat_interleave"
        yield name, there_and_back(layer, problem, arrays)


def ways(problem, arrays, threads):
    """Yields (name, run); run() returns the result as a tensor."""
    torch.set_num_threads(threads)
    if problem.role == "projection":
        x = tensor(problem, arrays["x"])

        def linear():
            w = tensor(problem, arrays["w"].copy())
            return lambda: F.linear(x, w)

        found = [("linear", in_turn(linear))]
    elif problem.role == "backward":
        yield from backward_ways(problem, arrays)
        return
    elif problem.role == "training":
        yield from training_ways(problem, arrays)
        return
    elif problem.role == "layer":
        found = layer_ways(problem, arrays)
    else:
        found = attention_ways(problem, arrays)
    for name, function in found:
        yield name, timed(function)


def to_array(result, _problem):
    return result.to(torch.float32).numpy()


def version():
    return torch.__version__
