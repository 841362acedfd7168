# SPDX-License-Identifier: Apache-2.0
"""heed's Python package, in the process of its rivals and on PyTorch's tensors: what a program that has both gets."""

import heed.torch
import numpy as np
import torch
from contestant_torch import tensor, there_and_back

import heed

MATRICES = {"q": "w_q", "k": "w_k", "v": "w_v", "o": "w_o"}


def attention_ways(case, arrays, is_small):
    q, k, v = (tensor(case, arrays[name]) for name in ("q", "k", "v"))
    causal = "ends" if case.causal else None
    if q.is_cuda:
        grouped = {"is_causal": case.causal, "enable_gqa": case.is_grouped}
        yield "torch.scaled_dot_product_attention", lambda: heed.torch.scaled_dot_product_attention(q, k, v, **grouped)
        return
    yield "attention", lambda: heed.attention(q, k, v, causal=causal)
    if not is_small:
        return
    # Where a call is mostly Python it matters how it is asked.
    out, arrays_out = torch.empty_like(q), np.empty_like(arrays["q"])
    yield "attention, out=", lambda: heed.attention(q, k, v, causal=causal, out=out)
    yield "scaled_dot_product_attention", lambda: heed.scaled_dot_product_attention(q, k, v, is_causal=case.causal)
    numpys = [arrays[name] for name in ("q", "k", "v")]
    yield "scaled_dot_product_attention, NumPy", lambda: heed.scaled_dot_product_attention(*numpys, is_causal=case.causal)
    yield "attention, NumPy", lambda: heed.attention(*numpys, causal=causal)
    yield "attention, NumPy, out=", lambda: heed.attention(*numpys, causal=causal, out=arrays_out)


def backward_way(case, arrays):
    q, k, v, out_gradient = (tensor(case, arrays[name]) for name in ("q", "k", "v", "out_gradient"))
    causal = "ends" if case.causal else None
    out, lse = heed.attention(q, k, v, causal=causal, return_lse=True)
    return lambda: heed.attention_backward(out_gradient, q, k, v, out, lse, causal=causal)[0]


def module_of(case, arrays):
    """PyTorch's module: its projections are PyTorch's wherever autograd or a GPU takes part."""
    _, heads, kv_heads, _, _, dim = case.shape
    weights = {f"{name}_proj.weight": tensor(case, arrays[key]) for name, key in MATRICES.items()}
    first = weights["q_proj.weight"]
    layer = heed.torch.AttentionLayer(heads * dim, heads, kv_heads, device=first.device, dtype=first.dtype)
    layer.load_state_dict(weights)
    return layer


def layer_way(case, arrays):
    x = tensor(case, arrays["x"])
    if x.is_cuda:
        module = module_of(case, arrays).eval().requires_grad_(False)
        return "torch.AttentionLayer", lambda: module(x, causal=case.causal)
    _, heads, kv_heads, _, _, dim = case.shape
    layer = heed.AttentionLayer(heads * dim, heads, kv_heads)
    layer.load({f"W_{name}.weight": arrays[key] for name, key in MATRICES.items()})
    return "AttentionLayer", lambda: layer(x)


def ways(case, arrays, threads):
    """Yields (name, run); run() returns the result as a tensor."""
    heed.set_num_threads(threads)
    if case.role in ("layer", "projection"):
        yield layer_way(case, arrays)
    elif case.role == "backward":
        yield "attention_backward", backward_way(case, arrays)
    elif case.role == "training":
        yield "torch.AttentionLayer", there_and_back(module_of(case, arrays), case, arrays)
    else:
        yield from attention_ways(case, arrays, is_small=case.operations is not None and case.operations < 1e6)


def version():
    return heed.__version__
